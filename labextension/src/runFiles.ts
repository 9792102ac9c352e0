/** The exported runs in the folder of a notebook or of another run. */

import type { Contents, ServerConnection } from '@jupyterlab/services';
import { PathExt } from '@jupyterlab/coreutils';

import { FileSource } from './fileSource';
import type { IRunFiles } from './otherRun';

export class FolderRuns implements IRunFiles {
  /** @param path - of a file in the folder; asked each time, because notebooks are renamed. */
  constructor(
    private readonly _contents: Contents.IManager,
    private readonly _settings: ServerConnection.ISettings,
    private readonly _path: () => string
  ) {}

  async list(): Promise<readonly string[]> {
    const folder = await this._contents.get(PathExt.dirname(this._path()), { content: true });
    const files: readonly Contents.IModel[] = Array.isArray(folder.content) ? folder.content : [];
    return files.map(file => file.path).filter(path => path.endsWith('.llab') && path !== this._path());
  }

  open(path: string): FileSource {
    return new FileSource(this._settings, path);
  }
}
