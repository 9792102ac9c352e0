/**
 * What the panel knows of a lab: frames go in, a signal comes out. No DOM, no kernel.
 *
 * Frames may be lost, repeated or begin in the middle (a page reload): counters are cumulative, deltas carry whole
 * rows and key-frames repeat all rows in turn, so that applying whatever arrives converges to the store.
 */

import { ISignal, Signal } from '@lumino/signaling';

import { RowTable } from './rows';
import type {
  ICounters,
  IFrame,
  ILimit,
  IOldest,
  IPhase,
  IProblem,
  IReward,
  IRowBlock,
  IRunInfo,
  IStepRow
} from './wire';

const NO_COUNTERS: ICounters = {
  total: 0,
  queuing: 0,
  running: 0,
  succeeded: 0,
  failed: 0,
  cancelled: 0,
  infrastructure: 0,
  calls: 0,
  in_flight: 0,
  held: 0,
  prompt_tokens: 0,
  sampled_tokens: 0
};
const NO_PHASE: IPhase = { name: 'idle', since: null, step: null, version: null };
const NO_REWARD: IReward = { now: null, best: null, heldOut: [] };

/** Seconds over which a token rate is averaged. */
const RATE_WINDOW_S = 10;

/** What a change touched, so that a view may skip what it does not show. */
export interface IModelChange {
  readonly rows: boolean;
  readonly steps: boolean;
  /** Another lab or run: views forget scroll positions and selections. */
  readonly reset: boolean;
}

export class RunModel {
  /** @param now - a monotonic clock in milliseconds. */
  constructor(now: () => number = () => performance.now()) {
    this._now = now;
  }

  /** Emitted after every change. */
  get changed(): ISignal<this, IModelChange> {
    return this._changed;
  }

  readonly rows = new RowTable();

  /** Id of the lab whose frames these are; empty before the first one. */
  get lab(): string {
    return this._lab;
  }
  get labOpen(): boolean {
    return this._labState === 'open';
  }
  get unsandboxed(): boolean {
    return this._unsandboxed;
  }
  /** Whether the user paused the run; `null` where the kernel does not say. */
  get paused(): boolean | null {
    return this._paused;
  }
  get run(): IRunInfo | null {
    return this._run;
  }
  get phase(): IPhase {
    return this._phase;
  }
  get counters(): ICounters {
    return this._counters;
  }
  get reward(): IReward {
    return this._reward;
  }
  /** The rollout that has run longest; `null` when none runs. */
  get oldest(): IOldest | null {
    return this._oldest;
  }
  /** How many agents may run at one time; `null` where nothing can. */
  get limit(): ILimit | null {
    return this._limit;
  }
  /** Ranked findings, worst first. */
  get problems(): readonly IProblem[] {
    return this._problems;
  }
  /** Steps in order of their index; a step that has not arrived yet is absent. */
  get steps(): readonly IStepRow[] {
    return this._steps;
  }
  /** When the last frame arrived, in milliseconds of the monotonic clock; `null` before the first. */
  get lastFrameAt(): number | null {
    return this._lastFrameAt;
  }
  /** Frames that the sequence numbers show to be missing. They heal; the number is for diagnosis. */
  get lostFrames(): number {
    return this._lostFrames;
  }

  /** The kernel's clock now, extrapolated from the last frame: browser and kernel need not agree on the time. */
  get kernelNow(): number {
    const elapsed = this._frozen || this._lastFrameAt === null ? 0 : (this._now() - this._lastFrameAt) / 1000;
    return this._at + elapsed;
  }

  /** Seconds since the last frame, or `null` before the first. */
  get silence(): number | null {
    return this._lastFrameAt === null ? null : (this._now() - this._lastFrameAt) / 1000;
  }

  get active(): boolean {
    return this._run?.state === 'running';
  }

  /** Sampled tokens per second over the last seconds, or `null` while unknown. */
  get tokensPerSecond(): number | null {
    const first = this._rate[0];
    const last = this._rate[this._rate.length - 1];
    return first && last && last.at > first.at ? (last.tokens - first.tokens) / (last.at - first.at) : null;
  }

  /** Apply one frame of the live feed. */
  apply(frame: IFrame): void {
    if (frame.labState !== 'open' && this._lab !== '' && frame.lab !== this._lab) {
      return; // the farewell of a lab that another one has already replaced
    }
    const reset = frame.lab !== this._lab || (frame.run?.id ?? '') !== (this._run?.id ?? '');
    if (reset) {
      this._forget();
    } else if (frame.seq > this._seq + 1) {
      this._lostFrames += frame.seq - this._seq - 1;
    }
    this._seq = frame.seq;
    this._readHeader(frame);
    const steps = this._applySteps(frame.steps);
    const rows = frame.rollouts.rows > 0;
    this.rows.apply(frame.rollouts);
    this._noteRate();
    this._changed.emit({ rows: rows || reset, steps: steps || reset, reset });
  }

  /** Rows that were asked for, beside the frames. */
  applyRows(block: IRowBlock): void {
    this.rows.apply(block);
    this._changed.emit({ rows: true, steps: false, reset: false });
  }

  /** Show a stored state: its clock stands still. */
  applySnapshot(snapshot: IFrame): void {
    this._frozen = true;
    this.apply(snapshot);
  }

  /** The kernel that owned this lab is gone; what is known stays legible, marked as closed. */
  markClosed(): void {
    if (this._lab !== '' && this.labOpen) {
      this._labState = 'closed';
      this._changed.emit({ rows: false, steps: false, reset: false });
    }
  }

  private _forget(): void {
    this.rows.clear();
    this._steps = [];
    this._rate = [];
    this._lostFrames = 0;
  }

  private _readHeader(frame: IFrame): void {
    this._lab = frame.lab;
    this._labState = frame.labState;
    this._unsandboxed = frame.unsandboxed;
    this._paused = frame.paused;
    this._run = frame.run;
    this._phase = frame.phase ?? NO_PHASE;
    this._counters = frame.counters ?? NO_COUNTERS;
    this._reward = frame.reward ?? NO_REWARD;
    this._oldest = frame.oldest ?? null;
    this._limit = frame.limit ?? null;
    this._problems = frame.problems ?? [];
    this._at = frame.at;
    this._lastFrameAt = this._now();
  }

  private _applySteps(rows: readonly IStepRow[]): boolean {
    for (const row of rows) {
      const last = this._steps[this._steps.length - 1];
      if (!last || row.index > last.index) {
        this._steps.push(row);
        continue;
      }
      const at = this._steps.findIndex(step => step.index >= row.index);
      this._steps.splice(at, this._steps[at].index === row.index ? 1 : 0, row);
    }
    return rows.length > 0;
  }

  private _noteRate(): void {
    const rate = this._rate;
    const last = rate[rate.length - 1];
    if (!last || this._at > last.at) {
      rate.push({ at: this._at, tokens: this._counters.sampled_tokens });
    }
    while (rate.length > 2 && this._at - rate[1].at >= RATE_WINDOW_S) {
      rate.shift();
    }
  }

  private readonly _now: () => number;
  private _changed = new Signal<this, IModelChange>(this);
  private _frozen = false;
  private _lab = '';
  private _labState = 'open';
  private _unsandboxed = false;
  private _paused: boolean | null = null;
  private _run: IRunInfo | null = null;
  private _phase = NO_PHASE;
  private _counters = NO_COUNTERS;
  private _reward = NO_REWARD;
  private _oldest: IOldest | null = null;
  private _limit: ILimit | null = null;
  private _problems: readonly IProblem[] = [];
  private _steps: IStepRow[] = [];
  private _seq = 0;
  private _at = 0;
  private _lastFrameAt: number | null = null;
  private _lostFrames = 0;
  private _rate: { at: number; tokens: number }[] = [];
}
