/**
 * One link per kernel: reads the push feed from raw iopub messages on a connection of its own.
 *
 * The connection belongs to the link, not to a notebook, so that closing the notebook does not end it; it does not
 * handle comms, so that it never competes with the notebook's. The link is counted: views share it, the last one
 * closes it.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { RunModel } from './model';
import { IAnswer, RequestChannel } from './request';
import { Selection } from './selection';
import { ActionName, EXTENSION_VERSION, ILinkRegistry, IRunSource, SourceStatus } from './tokens';
import { decodeDetail } from './decodeDetail';
import { decodeFrame } from './decodeFrame';
import { decodeBlock } from './decodeAnswers';
import { PUSH_COMM_ID, SCHEMA_VERSION, SchemaMismatch } from './wire';
import type { IRolloutDetail } from './wireRollout';

/** As many rows as a few frames bring by themselves. */
const MANY_ROWS = 5000;

export class KernelLink implements IDisposable {
  /** @param kernel - a connection that the link owns and disposes of. */
  constructor(private readonly _kernel: Kernel.IKernelConnection) {
    this._requests = new RequestChannel(_kernel);
    _kernel.iopubMessage.connect(this._onMessage, this);
    _kernel.connectionStatusChanged.connect(this._onStatus, this);
    _kernel.statusChanged.connect(this._onStatus, this);
    _kernel.disposed.connect(this._onKernelDisposed, this);
    this.selection.changed.connect(this._tellSelection, this);
    this._greet();
  }

  readonly model = new RunModel();
  readonly selection = new Selection();

  get statusChanged(): ISignal<this, void> {
    return this._statusChanged;
  }

  get problem(): string {
    return this._problem;
  }

  get status(): SourceStatus {
    if (this._mismatch) {
      return 'mismatch';
    }
    if (this._kernel.isDisposed || this._kernel.status === 'dead') {
      return 'gone';
    }
    if (this._kernel.connectionStatus === 'connected') {
      return this.model.lab ? 'live' : 'waiting';
    }
    return this._kernel.connectionStatus === 'disconnected' || this._wasConnected ? 'disconnected' : 'connecting';
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  async detail(rolloutId: string): Promise<IRolloutDetail> {
    return decodeDetail((await this.ask('rollout', { id: rolloutId })).result);
  }

  ask(method: string, params: JSONObject): Promise<IAnswer> {
    return this._requests.request(method, params);
  }

  async act(name: ActionName, rolloutId?: string): Promise<void> {
    await this._requests.request('action', rolloutId === undefined ? { name } : { name, rollout: rolloutId });
  }

  reconnect(): void {
    if (!this._kernel.isDisposed) {
      // A failure shows in the connection status, which the views follow.
      this._kernel.reconnect().catch(() => undefined);
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._requests.close();
    Signal.clearData(this);
    if (!this._kernel.isDisposed) {
      // The goodbye messages are sent in a later turn of the event loop.
      setTimeout(() => this._kernel.dispose(), 0);
    }
  }

  private _onMessage(_: unknown, msg: KernelMessage.IIOPubMessage): void {
    if (KernelMessage.isCommMsgMsg(msg) && msg.content.comm_id === PUSH_COMM_ID) {
      this._onFrame(msg);
    } else if (KernelMessage.isStatusMsg(msg)) {
      this._onKernelSession(msg.header.session);
    } else {
      this._requests.handle(msg);
    }
  }

  private _onFrame(msg: KernelMessage.ICommMsgMsg): void {
    const before = this.model.lab;
    try {
      this.model.apply(decodeFrame(msg.content.data, msg.buffers ?? []));
    } catch (error) {
      this._refuse(error);
      return;
    }
    if (this.model.lab !== before) {
      this._filling = false;
      this._mismatch = false;
      this._problem = '';
      this._statusChanged.emit();
      if (!this._greeting) {
        void this._hello();
      }
    }
    void this._fill();
  }

  /**
   * Ask for rows instead of waiting until the frames have repeated them: after a reload, or when a run is large.
   *
   * A kernel that does not answer (an older one, a busy one) leaves it to the frames.
   */
  private async _fill(): Promise<void> {
    const { model } = this;
    const run = model.run?.id;
    if (this._filling || run === undefined || model.counters.total - model.rows.count < MANY_ROWS) {
      return;
    }
    this._filling = true;
    try {
      // The frames bring the newest rows meanwhile; what they brought is not asked for.
      let from = 0;
      let asked = this._ask(run, from);
      while (asked) {
        const { result, buffers } = await asked;
        const block = decodeBlock(result, buffers);
        if (block.rows === 0 || model.run?.id !== run || this._isDisposed) {
          break;
        }
        // The kernel makes the next while this is read.
        from = model.rows.missing(from + block.rows);
        asked = this._ask(run, from);
        model.applyRows(block);
      }
      this._filling = false;
    } catch {
      // Not asked again: the frames bring what is missing.
    }
  }

  /** Rows from a place on, unless the run has no more. */
  private _ask(run: string, from: number): Promise<IAnswer> | null {
    return from < this.model.counters.total ? this._requests.request('rows', { run, from }) : null;
  }

  private _refuse(error: unknown): void {
    if (error instanceof SchemaMismatch) {
      if (!this._mismatch) {
        this._mismatch = true;
        this._problem = error.message;
        this._statusChanged.emit();
      }
      return;
    }
    console.error('Lightning Lab: a frame could not be read and was left out; the next key-frame repeats it.', error);
  }

  /**
   * Say hello as soon as there is a connection: a lab that is open answers with a key-frame at once.
   *
   * A kernel without a lab closes the channel; the first frame of a later one makes the link say hello again.
   */
  private _greet(): void {
    if (!this._greeted && this._kernel.connectionStatus === 'connected') {
      this._greeted = true;
      void this._hello();
    }
  }

  /** The version handshake: a note when package and extension differ, never a reason to stop. */
  private async _hello(): Promise<void> {
    this._greeting = true;
    try {
      const answer = await this._requests.request('hello', { schema: SCHEMA_VERSION, extension: EXTENSION_VERSION });
      const version = (answer.result as { package?: unknown } | null)?.package;
      if (typeof version === 'string' && version !== EXTENSION_VERSION) {
        this._problem =
          `The kernel runs lightning-lab ${version}; this JupyterLab extension is ${EXTENSION_VERSION}. ` +
          'Newer columns may be missing.';
        this._statusChanged.emit();
      }
    } catch (error) {
      if (this._isDisposed || this.model.lab === '' || !this.model.labOpen) {
        return; // closed or restarted meanwhile, or there is no lab yet
      }
      console.warn('Lightning Lab: no handshake; requests may be unavailable.', error);
    } finally {
      this._greeting = false;
    }
  }

  /** A kernel that restarted signs its messages with another session id. */
  private _onKernelSession(session: string): void {
    if (this._kernelSession && session !== this._kernelSession) {
      this.model.markClosed();
      this._requests.reset('The kernel restarted.');
    }
    this._kernelSession = session;
  }

  private _onStatus(): void {
    this._wasConnected ||= this._kernel.connectionStatus === 'connected';
    const { status } = this._kernel;
    if (status === 'restarting' || status === 'autorestarting') {
      this.model.markClosed();
      this._requests.reset('The kernel is restarting.');
    }
    this._greet();
    this._statusChanged.emit();
  }

  private _onKernelDisposed(): void {
    this.model.markClosed();
    this._requests.reset('The kernel was shut down.');
    this._statusChanged.emit();
  }

  /** `lab.selection` follows the panel; that the kernel may not hear it is no reason to disturb the reader. */
  private _tellSelection(): void {
    if (this.status === 'live' && this.model.labOpen) {
      this._requests.request('select', { selection: { ...this.selection.current } }).catch(() => undefined);
    }
  }

  private readonly _requests: RequestChannel;
  private _statusChanged = new Signal<this, void>(this);
  private _isDisposed = false;
  private _kernelSession = '';
  private _wasConnected = false;
  private _mismatch = false;
  private _filling = false;
  private _greeted = false;
  private _greeting = false;
  private _problem = '';
}

/** A view's share of a link. */
class LinkShare implements IRunSource {
  constructor(
    private readonly _link: KernelLink,
    private readonly _release: () => void
  ) {
    _link.statusChanged.connect(this._relay, this);
  }

  readonly canAct = true;

  get model(): RunModel {
    return this._link.model;
  }
  get selection(): Selection {
    return this._link.selection;
  }
  get status(): SourceStatus {
    return this._link.status;
  }
  get problem(): string {
    return this._link.problem;
  }
  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  detail(rolloutId: string): Promise<IRolloutDetail> {
    return this._link.detail(rolloutId);
  }
  ask(method: string, params: JSONObject): Promise<IAnswer> {
    return this._link.ask(method, params);
  }
  act(name: ActionName, rolloutId?: string): Promise<void> {
    return this._link.act(name, rolloutId);
  }
  reconnect(): void {
    this._link.reconnect();
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      Signal.clearData(this);
      this._release();
    }
  }

  private _relay(): void {
    this._statusChanged.emit();
  }

  private _statusChanged = new Signal<IRunSource, void>(this);
  private _isDisposed = false;
}

export class LinkRegistry implements ILinkRegistry {
  /** @param connect - opens a connection of its own to a kernel, one that does not handle comms. */
  constructor(private readonly _connect: (kernel: Kernel.IModel) => Kernel.IKernelConnection) {}

  acquire(kernel: Kernel.IModel): IRunSource {
    let entry = this._entries.get(kernel.id);
    if (!entry || entry.link.status === 'gone') {
      entry = { link: new KernelLink(this._connect(kernel)), shares: 0 };
      this._entries.set(kernel.id, entry);
    }
    const held = entry;
    held.shares += 1;
    return new LinkShare(held.link, () => this._release(kernel.id, held));
  }

  private _release(id: string, entry: ILinkEntry): void {
    entry.shares -= 1;
    if (entry.shares > 0) {
      return;
    }
    entry.link.dispose();
    if (this._entries.get(id) === entry) {
      this._entries.delete(id);
    }
  }

  private _entries = new Map<string, ILinkEntry>();
}

interface ILinkEntry {
  readonly link: KernelLink;
  shares: number;
}
