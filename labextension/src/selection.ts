/** The one selection that drives every view: run › step › group › rollout › call › token. */

import { ISignal, Signal } from '@lumino/signaling';

/** Each level narrows the one before; `undefined` levels select nothing. */
export interface ISelection {
  readonly run?: string;
  readonly step?: number;
  readonly group?: string;
  readonly rollout?: string;
  readonly call?: string;
  readonly token?: number;
}

const LEVELS = ['run', 'step', 'group', 'rollout', 'call', 'token'] as const;

export class Selection {
  get changed(): ISignal<this, ISelection> {
    return this._changed;
  }

  get current(): ISelection {
    return this._current;
  }

  set(selection: ISelection): void {
    if (LEVELS.every(level => selection[level] === this._current[level])) {
      return;
    }
    this._current = selection;
    this._changed.emit(selection);
  }

  private _current: ISelection = {};
  private _changed = new Signal<this, ISelection>(this);
}
