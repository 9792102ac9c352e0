/**
 * Follows one session's kernel: restarts keep it, "change kernel" replaces it, closing the notebook does not matter.
 *
 * A session is found by its path and then followed by its id, so that renaming the notebook does not lose it.
 */

import type { Kernel, Session } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

export class KernelFollower implements IDisposable {
  constructor(
    private readonly _sessions: Session.IManager,
    private _path: string
  ) {
    this._sessions.runningChanged.connect(this._look, this);
    void this._begin();
  }

  /** Emitted when the kernel, or the session's path, becomes another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The session's path; it follows a rename. */
  get path(): string {
    return this._path;
  }

  /** The kernel now, or `null` while there is none. */
  get kernel(): Kernel.IModel | null {
    return this._kernel;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private async _begin(): Promise<void> {
    await this._sessions.ready;
    if (!this._isDisposed) {
      this._look();
    }
  }

  private _look(): void {
    let found: Session.IModel | undefined;
    for (const model of this._sessions.running()) {
      if (model.id === this._session) {
        found = model;
        break;
      }
      if (model.path === this._path) {
        found = model;
      }
    }
    const kernel = found?.kernel ?? null;
    const same = kernel?.id === this._kernel?.id && (found?.path ?? this._path) === this._path;
    this._session = found?.id ?? this._session;
    this._path = found?.path ?? this._path;
    this._kernel = kernel;
    if (!same) {
      this._changed.emit();
    }
  }

  private _changed = new Signal<this, void>(this);
  private _session = '';
  private _kernel: Kernel.IModel | null = null;
  private _isDisposed = false;
}
