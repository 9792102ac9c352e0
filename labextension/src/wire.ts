/**
 * The wire between the kernel and this extension, schema 1: types and decoding.
 *
 * Everything here is pure. Whatever arrives is untrusted (a saved notebook, an imported run, a newer kernel), so every
 * field is read by type and a missing or malformed one becomes a neutral value; only an unknown schema is refused.
 */

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

/** One optimiser step; `null` where the learner gave no number. */
export interface IStepRow {
  readonly index: number;
  readonly version: number | null;
  readonly reward: number | null;
  readonly entropy: number | null;
  readonly grad_norm: number | null;
  readonly approx_kl: number | null;
  readonly clip_frac: number | null;
  readonly rollouts: number | null;
  readonly no_signal: number | null;
  readonly skipped: string;
  readonly seconds: number | null;
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

/** One call of a rollout, with only the messages that are new in its thread. */
export interface ICallDetail {
  readonly id: string;
  readonly ordinal: number;
  readonly kind: string;
  readonly thread: string;
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
  readonly durationS: number | null;
  readonly error: string;
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
  /** What was left out so that a notebook output stays small; empty when nothing was. */
  readonly cut: string;
}

/** What a notebook output holds: enough to be legible without a kernel. */
export interface ISavedView {
  readonly view: 'run' | 'rollout';
  readonly lab: string;
  readonly openPanel: boolean;
  readonly snapshot: IFrame;
  readonly detail: IRolloutDetail | null;
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

type Json = Record<string, unknown>;

const EMPTY: Json = {};

function object(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : EMPTY;
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function number(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function count(value: unknown): number {
  return Math.max(0, Math.trunc(number(value) ?? 0));
}

/** Text as it is; other JSON values as JSON, so that no field is ever lost by being of another type. */
function text(value: unknown): string {
  if (typeof value === 'string') {
    return value;
  }
  return value === undefined || value === null ? '' : JSON.stringify(value);
}

function checkSchema(header: Json): void {
  if (header.v !== SCHEMA_VERSION) {
    throw new SchemaMismatch(header.v);
  }
}

type Buffer = ArrayBuffer | ArrayBufferView;

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

function texts(values: readonly unknown[]): (string | null)[] {
  return values.map(value => (typeof value === 'string' ? value : null));
}

function binaryColumn(spec: Json, buffer: Buffer): Column | null {
  switch (spec.type) {
    case 'f64':
      return { kind: 'number', values: numbers(buffer, 8) };
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

function decodeRows(value: unknown, buffers: readonly Buffer[]): IRowBlock {
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
  return {
    index,
    version: number(row.version),
    reward: number(row.reward),
    entropy: number(row.entropy),
    grad_norm: number(row.grad_norm),
    approx_kl: number(row.approx_kl),
    clip_frac: number(row.clip_frac),
    rollouts: number(row.rollouts),
    no_signal: number(row.no_signal),
    skipped: typeof row.skipped === 'boolean' ? (row.skipped ? 'skipped' : '') : text(row.skipped),
    seconds: number(row.seconds)
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
        after: text(b.after)
      };
    })
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
