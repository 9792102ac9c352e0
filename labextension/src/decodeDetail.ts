/** One rollout as it was recorded, and the data of saved views. */

import { decodeFrame } from './decodeFrame';
import { checkSchema, count, list, number, object, text } from './decodeJson';
import {
  DiffPart,
  ICallDetail,
  IDifference,
  IGatewayChanges,
  IMessage,
  IRolloutDetail,
  IRolloutInfo,
  ISavedAnswer,
  ISavedView,
  SCHEMA_VERSION
} from './wire';

function decodeMessage(value: unknown): IMessage {
  const message = object(value);
  return {
    role: text(message.role) || 'unknown',
    content: text(message.content),
    reasoning: text(message.reasoning),
    toolCalls: list(message.tool_calls).map(item => {
      const call = object(item);
      return { id: text(call.id), name: text(call.name), arguments: text(call.arguments) };
    }),
    toolCallId: text(message.tool_call_id),
    name: text(message.name)
  };
}

function decodeGateway(value: unknown): IGatewayChanges {
  const gateway = object(value);
  return {
    sampling: list(gateway.sampling).map(item => {
      const [name, asked, used] = list(item);
      return [text(name), text(asked), text(used)] as const;
    }),
    extra: list(gateway.extra).map(text),
    kept: count(gateway.kept),
    left: list(gateway.left).map(count)
  };
}

function decodePart(value: unknown): DiffPart {
  const [kind, said] = list(value);
  return [kind === '-' || kind === '+' ? kind : '=', text(said)];
}

function decodeDifference(value: unknown): IDifference | null {
  const found = object(value);
  if (number(found.previous) === null) {
    return null;
  }
  return {
    previous: count(found.previous),
    gone: count(found.gone),
    changed: list(found.changed).map(item => {
      const { role, parts } = object(item);
      return { role: text(role), parts: list(parts).map(decodePart) };
    }),
    toolsGone: list(found.tools_gone).map(text),
    toolsNew: list(found.tools_new).map(text)
  };
}

function decodeCall(value: unknown, position: number): ICallDetail {
  const call = object(value);
  return {
    id: text(call.id),
    ordinal: number(call.ordinal) ?? position,
    kind: text(call.kind) || 'main',
    thread: text(call.thread) || 'main',
    parentId: text(call.parent_id),
    protocol: text(call.protocol),
    model: text(call.model),
    finishReason: text(call.finish_reason),
    delivered: call.delivered !== false,
    messages: list(call.messages).map(decodeMessage),
    messagesFrom: count(call.messages_from),
    tools: list(call.tools).map(text),
    reply: decodeMessage(call.reply),
    promptTokens: number(call.prompt_tokens),
    sampledTokens: number(call.sampled_tokens),
    versions: list(call.versions).filter((v): v is number => number(v) !== null),
    heldS: number(call.held_s),
    arrivedAt: number(call.arrived_at),
    finishedAt: number(call.finished_at),
    durationS: number(call.duration_s),
    error: text(call.error),
    gateway: decodeGateway(call.gateway),
    difference: decodeDifference(call.difference)
  };
}

function decodeRolloutInfo(value: unknown): IRolloutInfo {
  const r = object(value);
  const task = object(r.task);
  const harness = object(r.harness);
  return {
    id: text(r.id),
    runId: text(r.run_id),
    groupId: text(r.group_id),
    taskId: text(task.id),
    prompt: text(task.prompt),
    answer: text(task.answer),
    harness: text(harness.name),
    harnessVersion: text(harness.version),
    mode: text(r.mode),
    state: text(r.state),
    attempt: number(r.attempt),
    outcome: text(r.outcome),
    reward: number(r.reward),
    verdict: text(r.verdict),
    output: text(r.output),
    error: text(r.error),
    stdout: text(r.stdout),
    stderr: text(r.stderr),
    exitCode: number(r.exit_code),
    createdAt: number(r.created_at),
    startedAt: number(r.started_at),
    finishedAt: number(r.finished_at),
    step: number(r.step),
    advantage: number(r.advantage),
    weight: number(r.weight)
  };
}

function decodeMasked(value: unknown): Record<string, number> {
  const masked: Record<string, number> = {};
  for (const [reason, n] of Object.entries(object(value))) {
    masked[reason] = count(n);
  }
  return masked;
}

/** The answer to the request `rollout`, or the `detail` of a saved view. Throws `SchemaMismatch`. */
export function decodeDetail(data: unknown): IRolloutDetail {
  const detail = object(data);
  checkSchema(detail);
  return {
    cut: text(detail.cut),
    rollout: decodeRolloutInfo(detail.rollout),
    calls: list(detail.calls).map(decodeCall),
    samples: list(detail.samples).map(item => {
      const sample = object(item);
      return {
        tokens: count(sample.tokens),
        trained: count(sample.trained),
        calls: list(sample.calls).map(text),
        masked: decodeMasked(sample.masked)
      };
    }),
    breaks: list(detail.breaks).map(item => {
      const b = object(item);
      return {
        callId: text(b.call_id),
        previousCallId: text(b.previous_call_id),
        index: number(b.index),
        cause: text(b.cause),
        before: text(b.before),
        after: text(b.after),
        sentence: text(b.explain)
      };
    }),
    trained: detail.trained !== false,
    tampering: list(detail.tampering).map(item => {
      const { at, message } = object(item);
      return { at: number(at), message: text(message) };
    }),
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
