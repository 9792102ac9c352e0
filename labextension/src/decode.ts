/**
 * Reading the wire, purely. Whatever arrives is untrusted (a saved notebook, an imported run, a newer kernel), so every
 * field is read by its type and a missing or malformed one becomes a neutral value; only an unknown schema is refused.
 */

import {
  Column,
  ICallDetail,
  ICounters,
  IFrame,
  IHeldOut,
  IMessage,
  IProblem,
  IReward,
  IRolloutDetail,
  IRolloutInfo,
  IRowBlock,
  IRunInfo,
  ISavedView,
  IStepRow,
  SCHEMA_VERSION,
  SchemaMismatch,
  STEP_NUMBERS,
  StepNumber
} from './wire';

type Json = Record<string, unknown>;

const EMPTY: Json = {};

export function object(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : EMPTY;
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function number(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

export function count(value: unknown): number {
  return Math.max(0, Math.trunc(number(value) ?? 0));
}

/** Text as it is; other JSON values as JSON, so that no field is ever lost by being of another type. */
export function text(value: unknown): string {
  if (typeof value === 'string') {
    return value;
  }
  return value === undefined || value === null ? '' : JSON.stringify(value);
}

export function checkSchema(header: Json): void {
  if (header.v !== SCHEMA_VERSION) {
    throw new SchemaMismatch(header.v);
  }
}

export type Buffer = ArrayBuffer | ArrayBufferView;

/** The bytes of one buffer, copied when they are not aligned for `width`-byte numbers. */
function bytes(buffer: Buffer, width: number): Uint8Array {
  const view = ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
  return view.byteOffset % width === 0 ? view : view.slice();
}

/** Typed arrays read in the machine's byte order, the wire is little-endian; the few others take the slow road. */
const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

function numbers(buffer: Buffer, width: 4 | 8): Float64Array | Int32Array {
  const raw = bytes(buffer, width);
  const length = Math.floor(raw.byteLength / width);
  if (LITTLE_ENDIAN) {
    return width === 8
      ? new Float64Array(raw.buffer, raw.byteOffset, length)
      : new Int32Array(raw.buffer, raw.byteOffset, length);
  }
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  return width === 8
    ? Float64Array.from({ length }, (_, i) => view.getFloat64(i * 8, true))
    : Int32Array.from({ length }, (_, i) => view.getInt32(i * 4, true));
}

function floats(buffer: Buffer): Float32Array {
  const raw = bytes(buffer, 4);
  const length = Math.floor(raw.byteLength / 4);
  if (LITTLE_ENDIAN) {
    return new Float32Array(raw.buffer, raw.byteOffset, length);
  }
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  return Float32Array.from({ length }, (_, i) => view.getFloat32(i * 4, true));
}

function texts(values: readonly unknown[]): (string | null)[] {
  return values.map(value => (typeof value === 'string' ? value : null));
}

function binaryColumn(spec: Json, buffer: Buffer): Column | null {
  switch (spec.type) {
    case 'f64':
      return { kind: 'number', values: numbers(buffer, 8) };
    case 'f32':
      return { kind: 'number', values: floats(buffer) };
    case 'i32':
      return { kind: 'number', values: numbers(buffer, 4) };
    case 'code':
      return { kind: 'code', codes: bytes(buffer, 1), values: list(spec.values).map(text) };
    case 'json':
      return { kind: 'text', values: texts(list(JSON.parse(new TextDecoder().decode(bytes(buffer, 1))))) };
    default:
      return null; // a type of a later minor version: leave the column out, keep the rest
  }
}

const TEXT_COLUMNS = new Set(['id', 'group', 'task', 'harness', 'mode', 'state', 'outcome']);

/** A column of a saved view, whose values are plain JSON. */
function plainColumn(name: string, values: readonly unknown[]): Column {
  return TEXT_COLUMNS.has(name)
    ? { kind: 'text', values: texts(values) }
    : { kind: 'number', values: values.map(value => number(value) ?? NaN) };
}

function columnLength(column: Column): number {
  return column.kind === 'code' ? column.codes.length : column.values.length;
}

export function decodeRows(value: unknown, buffers: readonly Buffer[]): IRowBlock {
  const block = object(value);
  const columns = new Map<string, Column>();
  let rows = count(block.rows);
  for (const item of list(block.columns)) {
    const spec = object(item);
    const name = text(spec.name);
    const buffer = typeof spec.buffer === 'number' ? buffers[spec.buffer] : undefined;
    const column = buffer
      ? binaryColumn(spec, buffer)
      : Array.isArray(spec.values) && spec.buffer === undefined
        ? plainColumn(name, spec.values)
        : null;
    if (column) {
      columns.set(name, column);
      rows = Math.min(rows, columnLength(column));
    }
  }
  return { rows, columns };
}

function decodeRun(value: unknown): IRunInfo | null {
  const run = object(value);
  if (typeof run.id !== 'string') {
    return null;
  }
  return {
    id: run.id,
    kind: text(run.kind),
    state: text(run.state),
    reason: text(run.reason),
    createdAt: number(run.created_at),
    finishedAt: number(run.finished_at),
    stepsTotal: number(run.steps_total),
    harness: text(run.harness),
    policy: text(run.policy)
  };
}

function decodeCounters(value: unknown): ICounters {
  const c = object(value);
  return {
    total: count(c.total),
    queuing: count(c.queuing),
    running: count(c.running),
    succeeded: count(c.succeeded),
    failed: count(c.failed),
    cancelled: count(c.cancelled),
    infrastructure: count(c.infrastructure),
    calls: count(c.calls),
    in_flight: count(c.in_flight),
    held: count(c.held),
    prompt_tokens: count(c.prompt_tokens),
    sampled_tokens: count(c.sampled_tokens)
  };
}

function decodeReward(value: unknown): IReward {
  const reward = object(value);
  const heldOut: IHeldOut[] = [];
  for (const item of list(reward.held_out)) {
    const point = object(item);
    const step = number(point.step);
    const y = number(point.value);
    if (step !== null && y !== null) {
      heldOut.push({ step, value: y, n: count(point.n) });
    }
  }
  return { now: number(reward.now), best: number(reward.best), heldOut };
}

function decodeStep(value: unknown): IStepRow | null {
  const row = object(value);
  const index = number(row.index);
  if (index === null || index < 0) {
    return null;
  }
  const numbers = Object.fromEntries(STEP_NUMBERS.map(name => [name, number(row[name])])) as Record<
    StepNumber,
    number | null
  >;
  const skipped = typeof row.skipped === 'boolean' ? (row.skipped ? 'skipped' : '') : text(row.skipped);
  return { ...numbers, index, skipped };
}

function decodeProblem(value: unknown): IProblem {
  const p = object(value);
  return {
    kind: text(p.kind),
    severity: number(p.severity) ?? 1,
    title: text(p.title),
    detail: text(p.detail),
    count: count(p.count),
    rollouts: list(p.rollouts).map(text),
    groups: list(p.groups).map(text),
    step: number(p.step)
  };
}

/**
 * One push frame, or the snapshot of a saved view (`buffers` empty, plain `values` in the columns).
 *
 * Throws `SchemaMismatch` for another schema and `SyntaxError` for a text column that is no JSON.
 */
export function decodeFrame(data: unknown, buffers: readonly Buffer[] = []): IFrame {
  const header = object(data);
  checkSchema(header);
  const phase = object(header.phase);
  const steps = list(object(header.steps).rows).map(decodeStep);
  return {
    lab: text(header.lab),
    seq: count(header.seq),
    at: number(header.at) ?? 0,
    labState: text(header.lab_state) || 'open',
    unsandboxed: header.unsandboxed === true,
    paused: typeof header.paused === 'boolean' ? header.paused : null,
    run: decodeRun(header.run),
    phase: {
      name: text(phase.name) || 'idle',
      since: number(phase.since),
      step: number(phase.step),
      version: number(phase.version)
    },
    counters: decodeCounters(header.counters),
    reward: decodeReward(header.reward),
    problems: list(header.problems).map(decodeProblem),
    steps: steps.filter((row): row is IStepRow => row !== null),
    rollouts: decodeRows(header.rollouts, buffers)
  };
}

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

function decodeCall(value: unknown, position: number): ICallDetail {
  const call = object(value);
  return {
    id: text(call.id),
    ordinal: number(call.ordinal) ?? position,
    kind: text(call.kind) || 'main',
    thread: text(call.thread) || 'main',
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
    error: text(call.error)
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
    trained: detail.trained !== false
  };
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
    detail: saved.detail ? decodeDetail({ v: SCHEMA_VERSION, ...object(saved.detail) }) : null
  };
}
