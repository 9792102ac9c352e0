/** What the wire tells of one rollout: its calls, samples token by token, breaks and weights. */

import type { IRowBlock } from './wire';

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
