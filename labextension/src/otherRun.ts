/** Another run than the one on show: of the same lab, or exported beside the notebook. */

import type { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { decodeRunPart } from './decodeAnswers';
import { RunModel } from './model';
import type { IAnswer } from './request';
import { Selection } from './selection';
import type { ActionName, IRunSource, SourceStatus } from './tokens';
import type { IRolloutDetail } from './wireRollout';

/** More answers than any run takes; a kernel that never says "all" is broken, not big. */
const MAX_PARTS = 1000;

/** A run that the lab remembers: its rows are read once, its rollouts are asked of the same lab. */
export class OtherRun implements IRunSource {
  constructor(
    private readonly _lab: IRunSource,
    readonly run: string
  ) {}

  readonly model = new RunModel();
  readonly selection = new Selection();
  readonly status: SourceStatus = 'saved';
  readonly problem = '';
  readonly canAct = false;

  /** Read the whole run. Rejects with the lab's reason. */
  async read(): Promise<void> {
    let [rows, steps] = [0, 0];
    for (let part = 0, left = true; left && part < MAX_PARTS; part++) {
      const { result, buffers } = await this._lab.ask('run', { run: this.run, rows, steps });
      const answer = decodeRunPart(result, buffers);
      this.model.applySnapshot(answer.frame);
      rows += answer.frame.rollouts.rows;
      steps += answer.frame.steps.length;
      left = answer.left && (answer.frame.rollouts.rows > 0 || answer.frame.steps.length > 0);
    }
  }

  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  get isDisposed(): boolean {
    return this._isDisposed;
  }
  detail(rolloutId: string): Promise<IRolloutDetail> {
    return this._lab.detail(rolloutId);
  }
  ask(method: string, params: JSONObject): Promise<IAnswer> {
    return this._lab.ask(method, params);
  }
  async act(name: ActionName): Promise<void> {
    throw new Error(`This run is over: there is nothing to ${name}.`);
  }
  reconnect(): void {
    this._lab.reconnect();
  }
  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private _statusChanged = new Signal<IRunSource, void>(this);
  private _isDisposed = false;
}

/** Exported runs that can be opened beside the one on show. */
export interface IRunFiles {
  /** Their paths. */
  list(): Promise<readonly string[]>;
  open(path: string): IRunSource;
}

/** Resolves once a source has all it will have; rejects with what it says is wrong. */
export function whenRead(source: IRunSource): Promise<IRunSource> {
  return new Promise((resolve, reject) => {
    const look = (): void => {
      if (source.status === 'file') {
        resolve(source);
      } else if (source.status === 'disconnected') {
        reject(new Error(source.problem));
      } else {
        return;
      }
      source.statusChanged.disconnect(look);
    };
    source.statusChanged.connect(look);
    look();
  });
}
