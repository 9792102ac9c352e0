/** The wire between the kernel and this extension, schema 1: names and types. `decode…` reads them. */

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

export interface IToolCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: string;
}

export interface IMessage {
  readonly role: string;
  readonly content: string;
  readonly reasoning: string;
  readonly toolCalls: readonly IToolCall[];
  readonly toolCallId: string;
  readonly name: string;
}

/** What the gateway did to a request. */
export interface IGatewayChanges {
  /** Name, what the harness asked, what the run used instead; both as JSON. */
  readonly sampling: readonly (readonly [string, string, string])[];
  /** Fields that the gateway does not know and kept. */
  readonly extra: readonly string[];
  /** Earlier replies, new in the conversation, that stand in the prompt as they were sampled. */
  readonly kept: number;
  /** Ordinals of calls whose replies came back with another text. */
  readonly left: readonly number[];
}

/** A piece of a text: the same before and after, only before, or only after. */
export type DiffPart = readonly ['=' | '-' | '+', string];

/** What a harness did to the conversation since the thread's previous call. */
export interface IDifference {
  /** Ordinal of that call. */
  readonly previous: number;
  /** Messages that are not there any more. */
  readonly gone: number;
  readonly changed: readonly { readonly role: string; readonly parts: readonly DiffPart[] }[];
  readonly toolsGone: readonly string[];
  readonly toolsNew: readonly string[];
}

/** One call of a rollout, with only the messages that are new in its thread. */
export interface ICallDetail {
  readonly id: string;
  readonly ordinal: number;
  readonly kind: string;
  readonly thread: string;
  /** The call that it continues; empty for the first of a conversation. */
  readonly parentId: string;
  readonly protocol: string;
  readonly model: string;
  readonly finishReason: string;
  readonly delivered: boolean;
  readonly messages: readonly IMessage[];
  readonly messagesFrom: number;
  readonly tools: readonly string[];
  readonly reply: IMessage;
  readonly promptTokens: number | null;
  readonly sampledTokens: number | null;
  readonly versions: readonly number[];
  readonly heldS: number | null;
  readonly arrivedAt: number | null;
  readonly finishedAt: number | null;
  readonly durationS: number | null;
  readonly error: string;
  readonly gateway: IGatewayChanges;
  /** `null` where the conversation only went on. */
  readonly difference: IDifference | null;
}

/** Something that was tried with the rollout's key beyond model calls, and refused. */
export interface ITampering {
  readonly at: number | null;
  readonly message: string;
}

export interface ISampleDetail {
  readonly tokens: number;
  readonly trained: number;
  readonly calls: readonly string[];
  readonly masked: Readonly<Record<string, number>>;
}

export interface IBreakDetail {
  readonly callId: string;
  readonly previousCallId: string;
  readonly index: number | null;
  readonly cause: string;
  readonly before: string;
  readonly after: string;
  /** Where and why, in one sentence; empty in views stored by older versions. */
  readonly sentence: string;
}

export interface IRolloutInfo {
  readonly id: string;
  readonly runId: string;
  readonly groupId: string;
  readonly taskId: string;
  readonly prompt: string;
  readonly answer: string;
  readonly harness: string;
  readonly harnessVersion: string;
  readonly mode: string;
  readonly state: string;
  readonly attempt: number | null;
  readonly outcome: string;
  readonly reward: number | null;
  readonly verdict: string;
  readonly output: string;
  readonly error: string;
  readonly stdout: string;
  readonly stderr: string;
  readonly exitCode: number | null;
  readonly createdAt: number | null;
  readonly startedAt: number | null;
  readonly finishedAt: number | null;
  readonly step: number | null;
  readonly advantage: number | null;
  readonly weight: number | null;
}

export interface IRolloutDetail {
  readonly rollout: IRolloutInfo;
  readonly calls: readonly ICallDetail[];
  readonly samples: readonly ISampleDetail[];
  readonly breaks: readonly IBreakDetail[];
  /** Whether a step consumed the samples; otherwise they are what the calls would give now. */
  readonly trained: boolean;
  readonly tampering: readonly ITampering[];
  /** How each attempt before this one ended, oldest first. */
  readonly earlierOutcomes: readonly string[];
  /** What was left out so that a notebook output stays small; empty when nothing was. */
  readonly cut: string;
}

/** A call's sampled tokens inside a sample. */
export interface ISegment {
  readonly callId: string;
  readonly start: number;
  readonly stop: number;
}

/** Some tokens of one sample, from place `from` on; columns that were not computed are absent. */
export interface ITokenPart extends IRowBlock {
  readonly sample: number;
  readonly from: number;
  /** Tokens of the whole sample. */
  readonly tokens: number;
  /** Those that this part touches. */
  readonly segments: readonly ISegment[];
}

export interface IBreakSide {
  readonly ids: readonly number[];
  readonly texts: readonly string[];
  /** Tokens of the whole side. */
  readonly tokens: number;
}

/** A break with the tokens around its first difference, on both sides. */
export interface IBreakSides {
  readonly callId: string;
  readonly previousCallId: string;
  readonly cause: string;
  readonly index: number;
  /** Place of the first token shown. */
  readonly start: number;
  /** Tokens of the sample behind the break. */
  readonly left: number;
  readonly sentence: string;
  readonly stitching: string;
  readonly sample: IBreakSide;
  readonly prompt: IBreakSide;
}

export interface IWeighed {
  readonly id: string;
  readonly state: string;
  readonly outcome: string;
  readonly reward: number | null;
  readonly advantage: number | null;
  readonly weight: number | null;
  readonly samples: number;
  readonly tokens: number;
  readonly breaks: number;
  /** Share of the step's loss by normaliser; empty when it has none. */
  readonly ghosts: Readonly<Record<string, number>>;
}

export interface IGroupWeights {
  readonly step: number | null;
  readonly normalizer: string;
  readonly normalizers: readonly string[];
  /** All valid rewards are equal. */
  readonly flat: boolean;
  readonly sentence: string;
  readonly rollouts: readonly IWeighed[];
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
