/** Sources that need no kernel. */

import { JSONExt, JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { RunModel } from './model';
import type { IAnswer } from './request';
import { Selection } from './selection';
import { ActionName, IRunSource, SourceStatus } from './tokens';
import { ISavedView } from './wire';
import type { IRolloutDetail } from './wireRollout';

/** The state that a notebook output stored when it was made. */
export class SavedSource implements IRunSource {
  constructor(private readonly _saved: ISavedView) {
    this.model.applySnapshot(_saved.snapshot);
    if (_saved.view === 'rollout' && _saved.detail) {
      this.selection.set({ rollout: _saved.detail.rollout.id });
    }
  }

  readonly model = new RunModel();
  readonly selection = new Selection();
  readonly problem = '';
  readonly canAct = false;

  /** `connecting` while the live source that may take its place has not spoken yet. */
  get status(): SourceStatus {
    return this._expectsLive ? 'connecting' : 'saved';
  }

  /** Whether a live source may still take the place of this one: then nothing says that it is stored. */
  set expectsLive(expects: boolean) {
    if (expects !== this._expectsLive) {
      this._expectsLive = expects;
      this._statusChanged.emit();
    }
  }

  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  async detail(rolloutId: string): Promise<IRolloutDetail> {
    const { detail } = this._saved;
    if (detail?.rollout.id === rolloutId) {
      return detail;
    }
    throw new Error(
      'This output stores the table of rollouts, not what was said in them. Open the run (ll.load) to read it.'
    );
  }

  async ask(method: string, params: JSONObject): Promise<IAnswer> {
    const wanted = { ...params };
    const kept = this._saved.answers.find(
      answer => answer.method === method && JSONExt.deepEqual(answer.params as JSONObject, wanted)
    );
    if (kept) {
      return kept;
    }
    throw new Error(
      params.from
        ? 'This output stores the beginning of this sample. Open the run (ll.load) to read the rest.'
        : 'This is not stored in this output. Open the run (ll.load), or the panel while it is live.'
    );
  }

  async act(name: ActionName): Promise<void> {
    throw new Error(`This is a stored state: there is nothing to ${name}.`);
  }

  reconnect(): void {
    // Nothing to reach.
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private _statusChanged = new Signal<IRunSource, void>(this);
  private _expectsLive = false;
  private _isDisposed = false;
}

/** No kernel at all: the notebook is not running. */
export class AbsentSource implements IRunSource {
  readonly model = new RunModel();
  readonly selection = new Selection();
  readonly status: SourceStatus = 'gone';
  readonly problem = '';
  readonly canAct = false;

  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  async detail(): Promise<IRolloutDetail> {
    throw new Error('There is no kernel to ask.');
  }

  async ask(): Promise<IAnswer> {
    throw new Error('There is no kernel to ask.');
  }

  async act(): Promise<void> {
    throw new Error('There is no kernel to ask.');
  }

  reconnect(): void {
    // Nothing to reach.
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private _statusChanged = new Signal<IRunSource, void>(this);
  private _isDisposed = false;
}
