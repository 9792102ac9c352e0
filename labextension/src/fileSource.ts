/** An exported run, read by the server's part of this extension: no kernel is involved. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { decodeDetail } from './decodeDetail';
import { decodeFrame } from './decodeFrame';
import { RunModel } from './model';
import { IAnswer, RequestError } from './request';
import { Selection } from './selection';
import type { ActionName, IRunSource, SourceStatus } from './tokens';
import type { IRolloutDetail } from './wireRollout';

/** One message of the server's byte stream. */
export interface IMessage {
  readonly header: unknown;
  readonly buffers: readonly Uint8Array[];
}

/** Read messages: number of parts, their lengths (u32, little-endian), the JSON, the buffers. Throws `RangeError`. */
export function unpack(body: ArrayBuffer): readonly IMessage[] {
  const view = new DataView(body);
  const messages: IMessage[] = [];
  let at = 0;
  while (at < body.byteLength) {
    const parts = view.getUint32(at, true);
    let start = at + 4 * (parts + 1);
    const read = Array.from({ length: parts }, (_, i) => {
      const length = view.getUint32(at + 4 * (i + 1), true);
      const part = new Uint8Array(body, start, length);
      start += length;
      return part;
    });
    messages.push({ header: JSON.parse(new TextDecoder().decode(read[0])), buffers: read.slice(1) });
    at = start;
  }
  return messages;
}

export class FileSource implements IRunSource {
  /** @param path - of the file, below the server's root. */
  constructor(
    private readonly _settings: ServerConnection.ISettings,
    readonly path: string
  ) {
    this.reconnect();
  }

  readonly model = new RunModel();
  readonly selection = new Selection();
  readonly canAct = false;

  get status(): SourceStatus {
    return this._status;
  }
  get problem(): string {
    return this._problem;
  }
  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  async detail(rolloutId: string): Promise<IRolloutDetail> {
    return decodeDetail((await this.ask('rollout', { id: rolloutId })).result);
  }

  async ask(method: string, params: JSONObject): Promise<IAnswer> {
    const [message] = await this._fetch({ method: 'POST', body: JSON.stringify({ id: 1, method, params }) });
    const reply = (message?.header ?? {}) as { ok?: unknown; result?: unknown; error?: { message?: unknown } };
    if (reply.ok !== true) {
      const said = reply.error?.message;
      throw new RequestError(typeof said === 'string' ? said : 'The file gave no answer.');
    }
    return { result: reply.result, buffers: message.buffers };
  }

  async act(name: ActionName): Promise<void> {
    throw new Error(`This run is stored in a file: there is nothing to ${name}.`);
  }

  /** Read the file, again if need be. */
  reconnect(): void {
    this._become('connecting');
    this._read().then(
      () => this._become('file'),
      (reason: unknown) => this._become('disconnected', reason instanceof Error ? reason.message : String(reason))
    );
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private async _read(): Promise<void> {
    for (const { header, buffers } of await this._fetch({ method: 'GET' })) {
      this.model.applySnapshot(decodeFrame(header, buffers));
    }
  }

  private async _fetch(init: RequestInit): Promise<readonly IMessage[]> {
    const query = URLExt.objectToQueryString({ path: this.path });
    const url = URLExt.join(this._settings.baseUrl, 'lightning-lab', 'run') + query;
    const response = await ServerConnection.makeRequest(url, init, this._settings);
    if (response.status === 404 && response.headers.get('content-type')?.includes('html')) {
      throw new Error(
        'The Jupyter server does not know Lightning Lab. Install lightning-lab where JupyterLab runs, restart it, or ' +
          'open the file in a notebook with ll.load(…).'
      );
    }
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
    return unpack(await response.arrayBuffer());
  }

  private _become(status: SourceStatus, problem = ''): void {
    this._status = status;
    this._problem = problem;
    if (!this._isDisposed) {
      this._statusChanged.emit();
    }
  }

  private _status: SourceStatus = 'connecting';
  private _problem = '';
  private _statusChanged = new Signal<IRunSource, void>(this);
  private _isDisposed = false;
}
