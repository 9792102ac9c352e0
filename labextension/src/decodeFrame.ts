/** What the lab says of a run as a whole: push frames. */

import { Buffer, decodeRows } from './decodeColumns';
import { checkSchema, count, list, number, object, text } from './decodeJson';
import {
  ICounters,
  IFrame,
  IHeldOut,
  ILimit,
  IOldest,
  IProblem,
  IReward,
  IRunInfo,
  IStepRow,
  STEP_NUMBERS,
  StepNumber
} from './wire';

export function decodeRun(value: unknown): IRunInfo | null {
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

function decodeOldest(value: unknown): IOldest | null {
  const oldest = object(value);
  return typeof oldest.rollout !== 'string'
    ? null
    : {
        rollout: oldest.rollout,
        startedAt: number(oldest.started_at),
        waitsFor: text(oldest.waits_for),
        since: number(oldest.since)
      };
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
    step: number(p.step),
    shade: text(p.shade)
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
    oldest: decodeOldest(header.oldest),
    limit: decodeLimit(header.limit),
    problems: list(header.problems).map(decodeProblem),
    steps: steps.filter((row): row is IStepRow => row !== null),
    rollouts: decodeRows(header.rollouts, buffers)
  };
}
