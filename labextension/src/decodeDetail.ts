/** One rollout as it was recorded, and the data of saved views. */

import { decodeFrame } from './decodeFrame';
import { checkSchema, count, list, number, object, text } from './decodeJson';
import { listOf, record } from './decodeRecord';
import { ISavedAnswer, ISavedView, SCHEMA_VERSION } from './wire';
import type {
  DiffPart,
  IBreakDetail,
  ICallDetail,
  IDifference,
  IGatewayChanges,
  IMessage,
  IRolloutDetail,
  IRolloutInfo,
  ISampleDetail,
  ITampering,
  IToolCall
} from './wireRollout';

const decodeMessage = record<IMessage>({
  role: value => text(value) || 'unknown',
  content: text,
  reasoning: text,
  toolCalls: listOf(record<IToolCall>({ id: text, name: text, arguments: text })),
  toolCallId: text,
  name: text
});

const decodeGateway = record<IGatewayChanges>({
  sampling: listOf(item => {
    const [name, asked, used] = list(item);
    return [text(name), text(asked), text(used)] as const;
  }),
  extra: listOf(text),
  kept: count,
  left: listOf(count)
});

function decodePart(value: unknown): DiffPart {
  const [kind, said] = list(value);
  return [kind === '-' || kind === '+' ? kind : '=', text(said)];
}

const readDifference = record<IDifference>({
  previous: count,
  gone: count,
  changed: listOf(record<IDifference['changed'][number]>({ role: text, parts: listOf(decodePart) })),
  toolsGone: listOf(text),
  toolsNew: listOf(text)
});

function decodeDifference(value: unknown): IDifference | null {
  return number(object(value).previous) === null ? null : readDifference(value);
}

const readCall = record<ICallDetail>({
  id: text,
  ordinal: value => number(value) ?? -1,
  kind: value => text(value) || 'main',
  thread: value => text(value) || 'main',
  parentId: text,
  protocol: text,
  model: text,
  finishReason: text,
  delivered: value => value !== false,
  messages: listOf(decodeMessage),
  messagesFrom: count,
  tools: listOf(text),
  reply: decodeMessage,
  promptTokens: number,
  sampledTokens: number,
  versions: value => list(value).filter((version): version is number => number(version) !== null),
  heldS: number,
  arrivedAt: number,
  finishedAt: number,
  durationS: number,
  error: text,
  gateway: decodeGateway,
  difference: decodeDifference
});

function decodeCall(value: unknown, position: number): ICallDetail {
  const call = readCall(value);
  return call.ordinal < 0 ? { ...call, ordinal: position } : call;
}

const readRollout = record<Omit<IRolloutInfo, 'taskId' | 'prompt' | 'answer' | 'harness' | 'harnessVersion'>>({
  id: text,
  runId: text,
  groupId: text,
  mode: text,
  state: text,
  attempt: number,
  outcome: text,
  reward: number,
  verdict: text,
  output: text,
  error: text,
  stdout: text,
  stderr: text,
  exitCode: number,
  createdAt: number,
  startedAt: number,
  finishedAt: number,
  step: number,
  advantage: number,
  weight: number
});

function decodeRolloutInfo(value: unknown): IRolloutInfo {
  const [task, harness] = [object(object(value).task), object(object(value).harness)];
  return {
    ...readRollout(value),
    taskId: text(task.id),
    prompt: text(task.prompt),
    answer: text(task.answer),
    harness: text(harness.name),
    harnessVersion: text(harness.version)
  };
}

function decodeMasked(value: unknown): Record<string, number> {
  const masked: Record<string, number> = {};
  for (const [reason, n] of Object.entries(object(value))) {
    masked[reason] = count(n);
  }
  return masked;
}

const decodeSample = record<ISampleDetail>({
  tokens: count,
  trained: count,
  calls: listOf(text),
  masked: decodeMasked
});

const readBreak = record<Omit<IBreakDetail, 'sentence'>>({
  callId: text,
  previousCallId: text,
  index: number,
  cause: text,
  before: text,
  after: text
});

/** The answer to the request `rollout`, or the `detail` of a saved view. Throws `SchemaMismatch`. */
export function decodeDetail(data: unknown): IRolloutDetail {
  const detail = object(data);
  checkSchema(detail);
  return {
    cut: text(detail.cut),
    rollout: decodeRolloutInfo(detail.rollout),
    calls: list(detail.calls).map(decodeCall),
    samples: list(detail.samples).map(decodeSample),
    breaks: list(detail.breaks).map(item => ({ ...readBreak(item), sentence: text(object(item).explain) })),
    trained: detail.trained !== false,
    tampering: list(detail.tampering).map(record<ITampering>({ at: number, message: text })),
    earlierOutcomes: list(detail.attempts).map(item => text(object(item).outcome))
  };
}

function decodeAnswer(value: unknown): ISavedAnswer {
  const { method, params, result, buffers } = object(value);
  return {
    method: text(method),
    params: object(params),
    result,
    buffers: list(buffers).map(item => bytes(text(item)))
  };
}

/** Base64 → bytes; nothing where it is none. */
function bytes(encoded: string): ArrayBuffer {
  try {
    return Uint8Array.from(atob(encoded), character => character.charCodeAt(0)).buffer;
  } catch {
    return new ArrayBuffer(0);
  }
}

/** The data of one `application/vnd.lightning-lab+json` output. Throws `SchemaMismatch`. */
export function decodeSavedView(data: unknown): ISavedView {
  const saved = object(data);
  checkSchema(saved);
  const stored = decodeFrame({ v: SCHEMA_VERSION, lab: saved.lab, ...object(saved.snapshot) });
  const snapshot = { ...stored, at: stored.at || stored.run?.finishedAt || stored.phase.since || 0 };
  return {
    view: saved.view === 'rollout' ? 'rollout' : 'run',
    lab: text(saved.lab) || snapshot.lab,
    openPanel: saved.open_panel === true,
    snapshot,
    detail: saved.detail ? decodeDetail({ v: SCHEMA_VERSION, ...object(saved.detail) }) : null,
    answers: list(saved.answers).map(decodeAnswer)
  };
}
