/** The wire between the kernel and this extension, schema 1: its names, and what is told of a run. `decode…` reads it. */

import type { IRolloutDetail } from './wireRollout';

export const SCHEMA_VERSION = 1;
export const PUSH_COMM_ID = 'lightning-lab-push';
export const REQUEST_TARGET = 'lightning-lab-request';
export const MIME_TYPE = 'application/vnd.lightning-lab+json';

export const ROLLOUT_STATES = ['queuing', 'running', 'succeeded', 'failed', 'cancelled'] as const;
export type RolloutState = (typeof ROLLOUT_STATES)[number];

/** What is known of the run as a whole. Times are Unix seconds of the kernel's clock. */
export interface IRunInfo {
  readonly id: string;
  readonly kind: string;
  readonly state: string;
  readonly reason: string;
  readonly createdAt: number | null;
  readonly finishedAt: number | null;
  readonly stepsTotal: number | null;
  readonly harness: string;
  readonly policy: string;
}

export interface IPhase {
  readonly name: string;
  readonly since: number | null;
  readonly step: number | null;
  readonly version: number | null;
}

/** Cumulative numbers of the run, straight from the store: they never need healing. */
export interface ICounters {
  readonly total: number;
  readonly queuing: number;
  readonly running: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly cancelled: number;
  readonly infrastructure: number;
  readonly calls: number;
  readonly in_flight: number;
  readonly held: number;
  readonly prompt_tokens: number;
  readonly sampled_tokens: number;
}

export interface IHeldOut {
  readonly step: number;
  readonly value: number;
  readonly n: number;
}

export interface IReward {
  readonly now: number | null;
  readonly best: number | null;
  readonly heldOut: readonly IHeldOut[];
}

/** Numbers of a step; `null` where the learner gave none. */
export const STEP_NUMBERS = [
  'version',
  'reward',
  'entropy',
  'grad_norm',
  'approx_kl',
  'clip_frac',
  'rollouts',
  'no_signal',
  'seconds',
  'ratio_mean',
  'ratio_max',
  'staleness',
  'staleness_max',
  'padding',
  'length_mean',
  'length_max',
  'tokens',
  'breaks',
  'infrastructure',
  'logprob_diff_max',
  'seconds_collect',
  'seconds_update'
] as const;
export type StepNumber = (typeof STEP_NUMBERS)[number];

/** Those that count something. */
export const STEP_COUNTS: ReadonlySet<string> = new Set<StepNumber>([
  'version',
  'rollouts',
  'no_signal',
  'infrastructure',
  'breaks',
  'tokens',
  'length_max',
  'staleness_max'
]);

/** The rollout that has run longest. */
export interface IOldest {
  readonly rollout: string;
  readonly startedAt: number | null;
  /** `model`, `resume` (its call is held), or `agent`: its own work, its tools among it. */
  readonly waitsFor: string;
  /** When it began to wait. */
  readonly since: number | null;
}

/** One optimiser step. */
export type IStepRow = { readonly index: number; readonly skipped: string } & {
  readonly [name in StepNumber]: number | null;
};

/** A finding about the run; its evidence is rollouts, groups or a step. */
export interface IProblem {
  readonly kind: string;
  /** 3: the run's numbers are in doubt; 2: work is lost; 1: worth knowing. */
  readonly severity: number;
  readonly title: string;
  readonly detail: string;
  readonly count: number;
  readonly rollouts: readonly string[];
  readonly groups: readonly string[];
  readonly step: number | null;
  /** The colouring of tokens that shows it; empty where none does. */
  readonly shade: string;
}

/** How many agents may run at one time, and who says so. */
export interface ILimit {
  readonly agents: number;
  /** `default`, `set`, `auto` or `cluster`. */
  readonly by: string;
}

export type Column =
  | { readonly kind: 'number'; readonly values: ArrayLike<number> }
  | { readonly kind: 'code'; readonly codes: ArrayLike<number>; readonly values: readonly string[] }
  | { readonly kind: 'text'; readonly values: readonly (string | null)[] };

/** Some rows of the rollout table, by column. All columns have `rows` entries. */
export interface IRowBlock {
  readonly rows: number;
  readonly columns: ReadonlyMap<string, Column>;
}

export interface IFrame {
  readonly lab: string;
  readonly seq: number;
  readonly at: number;
  readonly labState: string;
  readonly unsandboxed: boolean;
  /** Whether admission is paused by the user; `null` where the kernel does not say. */
  readonly paused: boolean | null;
  readonly run: IRunInfo | null;
  readonly phase: IPhase;
  readonly counters: ICounters;
  readonly reward: IReward;
  readonly oldest: IOldest | null;
  /** `null` where nothing can run: a stored run, a closed lab. */
  readonly limit: ILimit | null;
  /** Worst first. */
  readonly problems: readonly IProblem[];
  readonly steps: readonly IStepRow[];
  readonly rollouts: IRowBlock;
}

/** An answer that a notebook output keeps, to the same request later. */
export interface ISavedAnswer {
  readonly method: string;
  readonly params: unknown;
  readonly result: unknown;
  readonly buffers: readonly ArrayBuffer[];
}

/** What a notebook output holds: enough to be legible without a kernel. */
export interface ISavedView {
  readonly view: 'run' | 'rollout';
  readonly lab: string;
  readonly openPanel: boolean;
  readonly snapshot: IFrame;
  readonly detail: IRolloutDetail | null;
  readonly answers: readonly ISavedAnswer[];
}

/** The kernel and the extension do not speak the same schema. */
export class SchemaMismatch extends Error {
  constructor(readonly got: unknown) {
    super(
      `This kernel's lightning_lab speaks schema ${String(got)}; this JupyterLab extension speaks ` +
        `${SCHEMA_VERSION}. Install the same version of lightning-lab in both environments and reload the page.`
    );
    this.name = 'SchemaMismatch';
  }
}
