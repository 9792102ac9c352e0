/** Frames as the kernel sends them, for tests. */

import { decodeFrame } from '../src/decodeFrame';
import { IFrame } from '../src/wire';

export interface IRow {
  row: number;
  id?: string;
  group?: string;
  task?: string;
  mode?: string;
  state?: string;
  outcome?: string;
  step?: number;
  reward?: number;
  advantage?: number;
  calls?: number;
  started_at?: number;
  finished_at?: number;
}

const STATES = ['queuing', 'running', 'succeeded', 'failed', 'cancelled'];
const MODES = ['train', 'eval', 'single'];
const OUTCOMES = ['', 'completed', 'agent_error', 'grader_error'];

export function encodeRows(rows: readonly IRow[]): { rollouts: unknown; buffers: ArrayBuffer[] } {
  const columns: unknown[] = [];
  const buffers: ArrayBuffer[] = [];
  const add = (name: string, type: string, data: ArrayBuffer, more = {}): void => {
    columns.push({ name, type, buffer: buffers.push(data) - 1, ...more });
  };
  const json = (values: unknown[]): ArrayBuffer =>
    new TextEncoder().encode(JSON.stringify(values)).buffer as ArrayBuffer;
  const ints = (values: number[]): ArrayBuffer => Int32Array.from(values).buffer;
  const floats = (values: (number | undefined)[]): ArrayBuffer => Float64Array.from(values.map(v => v ?? NaN)).buffer;
  const codes = (words: string[], values: string[]): ArrayBuffer =>
    Uint8Array.from(values.map(v => words.indexOf(v))).buffer;
  add('row', 'i32', ints(rows.map(r => r.row)));
  add('id', 'json', json(rows.map(r => r.id ?? `r-${r.row}`)));
  add('group', 'json', json(rows.map(r => r.group ?? `g-${Math.floor(r.row / 4)}`)));
  add('task', 'json', json(rows.map(r => r.task ?? `task ${r.row}`)));
  add(
    'mode',
    'code',
    codes(
      MODES,
      rows.map(r => r.mode ?? 'train')
    ),
    { values: MODES }
  );
  add(
    'state',
    'code',
    codes(
      STATES,
      rows.map(r => r.state ?? 'queuing')
    ),
    { values: STATES }
  );
  add(
    'outcome',
    'code',
    codes(
      OUTCOMES,
      rows.map(r => r.outcome ?? '')
    ),
    { values: OUTCOMES }
  );
  add('step', 'i32', ints(rows.map(r => r.step ?? -1)));
  add('calls', 'i32', ints(rows.map(r => r.calls ?? 0)));
  add('reward', 'f64', floats(rows.map(r => r.reward)));
  add('advantage', 'f64', floats(rows.map(r => r.advantage)));
  add('started_at', 'f64', floats(rows.map(r => r.started_at)));
  add('finished_at', 'f64', floats(rows.map(r => r.finished_at)));
  return { rollouts: { rows: rows.length, columns }, buffers };
}

let seq = 0;

export interface IFrameOptions {
  readonly lab?: string;
  readonly labState?: string;
  readonly run?: string | null;
  readonly runState?: string;
  readonly kind?: string;
  readonly at?: number;
  readonly seq?: number;
  readonly rows?: readonly IRow[];
  readonly steps?: readonly Record<string, unknown>[];
  readonly counters?: Record<string, number>;
  readonly more?: Record<string, unknown>;
}

export function encodeFrame(options: IFrameOptions = {}): { data: Record<string, unknown>; buffers: ArrayBuffer[] } {
  const { rollouts, buffers } = encodeRows(options.rows ?? []);
  const run = options.run === undefined ? 'run-1' : options.run;
  const data = {
    v: 1,
    lab: options.lab ?? 'lab-1',
    seq: options.seq ?? ++seq,
    at: options.at ?? 1000,
    lab_state: options.labState ?? 'open',
    unsandboxed: true,
    run: run && {
      id: run,
      kind: options.kind ?? 'fit',
      state: options.runState ?? 'running',
      reason: '',
      created_at: 900,
      finished_at: null,
      steps_total: 100,
      harness: 'solver',
      policy: 'torch/quickstart'
    },
    phase: { name: 'collecting', since: 995, step: 3, version: 4 },
    counters: options.counters ?? {},
    reward: { now: 0.5, best: 0.75, held_out: [{ step: 0, value: 0.3, n: 256 }] },
    steps: { from: 0, rows: options.steps ?? [] },
    rollouts,
    ...options.more
  };
  return { data, buffers };
}

export function frame(options: IFrameOptions = {}): IFrame {
  const { data, buffers } = encodeFrame(options);
  return decodeFrame(data, buffers);
}

export const HOSTILE =
  '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2"> \u001b[31mred\u0000 \u202eevil\u202c \ud800 end';

/** An answer to the request `rollout`, with a tool call, a break and hostile text. */
export function detailJson(more: Record<string, unknown> = {}): Record<string, unknown> {
  const base = {
    kind: 'main',
    thread: 'main',
    protocol: 'chat',
    model: 'any',
    delivered: true,
    tools: ['calc'],
    error: '',
    prompt_tokens: 100,
    sampled_tokens: 20,
    versions: [3, 4],
    held_s: 1.5,
    duration_s: 2.25
  };
  return {
    v: 1,
    rollout: {
      id: 'r-1',
      run_id: 'run-1',
      group_id: 'g-0',
      task: { id: 't', prompt: HOSTILE, answer: 42 },
      harness: { name: 'solver', version: 'abcdef012345' },
      mode: 'train',
      state: 'succeeded',
      attempt: 1,
      outcome: 'completed',
      reward: 1,
      verdict: `right ${HOSTILE}`,
      output: '42',
      error: '',
      stdout: HOSTILE,
      stderr: '',
      exit_code: 0,
      created_at: 900,
      started_at: 901,
      finished_at: 903,
      step: 3,
      advantage: -0.5,
      weight: 0.03125,
      ...(more.rollout as object)
    },
    calls: [
      {
        ...base,
        id: 'c-1',
        ordinal: 0,
        finish_reason: 'tool_calls',
        messages_from: 0,
        messages: [
          { role: 'system', content: 'Be brief.' },
          { role: 'user', content: HOSTILE }
        ],
        reply: {
          role: 'assistant',
          content: '',
          reasoning: 'I need the tool.',
          tool_calls: [{ id: 't-1', name: 'calc', arguments: '{"expr": "6*7"}' }]
        }
      },
      {
        ...base,
        id: 'c-2',
        ordinal: 1,
        finish_reason: 'stop',
        delivered: false,
        messages_from: 3,
        messages: [{ role: 'tool', tool_call_id: 't-1', content: `42 ${HOSTILE}` }],
        reply: { role: 'assistant', content: `42 ${HOSTILE}` }
      }
    ],
    samples: [{ tokens: 120, trained: 20, calls: ['c-1'], masked: { over_budget: 3 } }],
    breaks: [
      { call_id: 'c-2', previous_call_id: 'c-1', index: 99, cause: 'tool_args', before: '{"a":1}', after: '{"a": 1}' }
    ],
    ...(more.detail as object)
  };
}
