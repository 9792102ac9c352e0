/** What the lab says of a run as a whole: push frames. */

import { Buffer, decodeRows } from './decodeColumns';
import { checkSchema, count, list, number, object, text } from './decodeJson';
import { listOf, record } from './decodeRecord';
import {
  ICounters,
  IFrame,
  IHeldOut,
  ILimit,
  IOldest,
  IPhase,
  IProblem,
  IReward,
  IRunInfo,
  IStepRow,
  STEP_NUMBERS,
  StepNumber
} from './wire';

const readRun = record<IRunInfo>({
  id: text,
  kind: text,
  state: text,
  reason: text,
  createdAt: number,
  finishedAt: number,
  stepsTotal: number,
  harness: text,
  policy: text
});

export function decodeRun(value: unknown): IRunInfo | null {
  return typeof object(value).id === 'string' ? readRun(value) : null;
}

const decodeCounters = record<ICounters>({
  total: count,
  queuing: count,
  running: count,
  succeeded: count,
  failed: count,
  cancelled: count,
  infrastructure: count,
  calls: count,
  in_flight: count,
  held: count,
  prompt_tokens: count,
  sampled_tokens: count
});

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

const readOldest = record<IOldest>({ rollout: text, startedAt: number, waitsFor: text, since: number });

function decodeOldest(value: unknown): IOldest | null {
  return typeof object(value).rollout === 'string' ? readOldest(value) : null;
}

function decodeLimit(value: unknown): ILimit | null {
  const { agents, by } = object(value);
  return number(agents) === null ? null : { agents: count(agents), by: text(by) };
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

const decodePhase = record<IPhase>({
  name: value => text(value) || 'idle',
  since: number,
  step: number,
  version: number
});

const decodeProblem = record<IProblem>({
  kind: text,
  severity: value => number(value) ?? 1,
  title: text,
  detail: text,
  count,
  rollouts: listOf(text),
  groups: listOf(text),
  step: number,
  shade: text
});

/**
 * One push frame, or the snapshot of a saved view (`buffers` empty, plain `values` in the columns).
 *
 * Throws `SchemaMismatch` for another schema and `SyntaxError` for a text column that is no JSON.
 */
export function decodeFrame(data: unknown, buffers: readonly Buffer[] = []): IFrame {
  const header = object(data);
  checkSchema(header);
  const steps = list(object(header.steps).rows).map(decodeStep);
  return {
    lab: text(header.lab),
    seq: count(header.seq),
    at: number(header.at) ?? 0,
    labState: text(header.lab_state) || 'open',
    unsandboxed: header.unsandboxed === true,
    paused: typeof header.paused === 'boolean' ? header.paused : null,
    run: decodeRun(header.run),
    phase: decodePhase(header.phase),
    counters: decodeCounters(header.counters),
    reward: decodeReward(header.reward),
    oldest: decodeOldest(header.oldest),
    limit: decodeLimit(header.limit),
    problems: list(header.problems).map(decodeProblem),
    steps: steps.filter((row): row is IStepRow => row !== null),
    rollouts: decodeRows(header.rollouts, buffers)
  };
}
