import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import {
  ABCWidgetFactory,
  DocumentRegistry,
  DocumentWidget,
  IDocumentWidget,
  TextModelFactory
} from '@jupyterlab/docregistry';
import type { Contents, ServerConnection } from '@jupyterlab/services';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';

import { FileSource } from '../fileSource';
import { labIcon } from '../icons';
import { makeRunFileView } from '../panel/runFile';
import { FolderRuns } from '../runFiles';

const FACTORY = 'Lightning Lab';
const FILE_TYPE = 'lightning-lab-run';

/** A document whose bytes are not fetched: the server reads the file, the view asks it for what is shown. */
class UnreadModelFactory extends TextModelFactory {
  override get name(): string {
    return FILE_TYPE;
  }
  override get contentType(): 'file' {
    return 'file';
  }
  override get fileFormat(): never {
    return null as never; // by its absence the content is left on the server
  }
}

interface IFactoryParts {
  readonly contents: Contents.IManager;
  readonly settings: ServerConnection.ISettings;
  readonly trans: TranslationBundle;
  readonly themeChanged: ISignal<unknown, unknown> | null;
}

class RunFileFactory extends ABCWidgetFactory<IDocumentWidget> {
  constructor(
    options: DocumentRegistry.IWidgetFactoryOptions<IDocumentWidget>,
    private readonly _parts: IFactoryParts
  ) {
    super(options);
  }

  protected createNewWidget(context: DocumentRegistry.Context): IDocumentWidget {
    const { contents, settings, trans, themeChanged } = this._parts;
    const source = new FileSource(settings, context.localPath || context.path);
    const files = new FolderRuns(contents, settings, () => context.path);
    const widget = new DocumentWidget({ context, content: makeRunFileView({ source, trans, themeChanged, files }) });
    widget.disposed.connect(() => source.dispose());
    widget.title.icon = labIcon;
    widget.toolbar.hide();
    return widget;
  }
}

/** Double click on an exported run opens its pages, without a kernel. */
export const filePlugin: JupyterFrontEndPlugin<void> = {
  id: 'lightning-lab:file',
  description: 'Opens exported runs (.llab).',
  autoStart: true,
  optional: [ILayoutRestorer, IThemeManager, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    restorer: ILayoutRestorer | null,
    themes: IThemeManager | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('lightning_lab');
    app.docRegistry.addFileType({
      name: FILE_TYPE,
      displayName: trans.__('Lightning Lab run'),
      extensions: ['.llab'],
      mimeTypes: ['application/x-sqlite3'],
      fileFormat: 'base64',
      contentType: 'file',
      icon: labIcon
    });
    app.docRegistry.addModelFactory(new UnreadModelFactory());
    const factory = new RunFileFactory(
      {
        name: FACTORY,
        label: trans.__('Lightning Lab'),
        modelName: FILE_TYPE,
        fileTypes: [FILE_TYPE],
        defaultFor: [FILE_TYPE],
        readOnly: true
      },
      {
        contents: app.serviceManager.contents,
        settings: app.serviceManager.serverSettings,
        trans,
        themeChanged: themes?.themeChanged ?? null
      }
    );
    app.docRegistry.addWidgetFactory(factory);
    const tracker = new WidgetTracker<IDocumentWidget>({ namespace: 'lightning-lab-file' });
    factory.widgetCreated.connect((_, widget) => {
      widget.context.pathChanged.connect(() => void tracker.save(widget));
      void tracker.add(widget);
    });
    if (restorer) {
      void restorer.restore(tracker, {
        command: 'docmanager:open',
        args: widget => ({ path: widget.context.path, factory: FACTORY }),
        name: widget => widget.context.path
      });
    }
  }
};
