/** Two runs, or two steps, side by side. Pure. */

import type { RunModel } from './model';
import { IStepRow, STEP_NUMBERS, StepNumber } from './wire';

/** What stands on one side. */
export interface ISide {
  readonly model: RunModel;
  /** `null` for the whole run. */
  readonly step: number | null;
}

export interface IMetricPair {
  readonly name: StepNumber;
  readonly a: number | null;
  readonly b: number | null;
}

export interface ITaskRollout {
  readonly id: string;
  /** NaN without a valid one. */
  readonly reward: number;
  readonly state: string;
}

/** One task's rollouts on one side. */
export interface ITaskSide {
  readonly rollouts: readonly ITaskRollout[];
  /** Mean of the valid rewards; NaN without any. */
  readonly reward: number;
}

export interface ITaskPair {
  readonly task: string;
  readonly a: ITaskSide | null;
  readonly b: ITaskSide | null;
}

export interface ISettingPair {
  readonly name: string;
  readonly a: string | null;
  readonly b: string | null;
}

/** Numbers that at least one side has: a step's own, or the mean over the steps of a run. */
export function compareMetrics(a: ISide, b: ISide): readonly IMetricPair[] {
  const [left, right] = [a, b].map(stepsOf);
  const names = STEP_NUMBERS.filter(name => name !== 'version' || (a.step !== null && b.step !== null));
  return names
    .map(name => ({ name, a: meanOf(left, name), b: meanOf(right, name) }))
    .filter(pair => pair.a !== null || pair.b !== null);
}

/** Tasks of both sides first, by the difference of their rewards, largest first. */
export function compareTasks(a: ISide, b: ISide): readonly ITaskPair[] {
  const [left, right] = [tasksOf(a), tasksOf(b)];
  const pairs = [...new Set([...left.keys(), ...right.keys()])].map(task => ({
    task,
    a: left.get(task) ?? null,
    b: right.get(task) ?? null
  }));
  const distance = (pair: ITaskPair): number => (pair.a && pair.b ? Math.abs(pair.a.reward - pair.b.reward) || 0 : -1);
  return pairs.sort((x, y) => distance(y) - distance(x));
}

/** Settings that are not equal, `null` where a run has none of that name. */
export function compareSettings(
  a: ReadonlyMap<string, string>,
  b: ReadonlyMap<string, string>
): readonly ISettingPair[] {
  return [...new Set([...a.keys(), ...b.keys()])]
    .map(name => ({ name, a: a.get(name) ?? null, b: b.get(name) ?? null }))
    .filter(pair => pair.a !== pair.b);
}

/** One number of two runs on one axis of steps, `null` where a run has no such step. */
export function overlaid(
  name: StepNumber,
  a: RunModel,
  b: RunModel
): { x: number[]; a: (number | null)[]; b: (number | null)[] } {
  const [left, right] = [a, b].map(model => new Map(model.steps.map(step => [step.index, step[name]])));
  const x = [...new Set([...left.keys(), ...right.keys()])].sort((p, q) => p - q);
  return { x, a: x.map(step => left.get(step) ?? null), b: x.map(step => right.get(step) ?? null) };
}

function stepsOf({ model, step }: ISide): readonly IStepRow[] {
  return step === null ? model.steps : model.steps.filter(row => row.index === step);
}

function meanOf(steps: readonly IStepRow[], name: StepNumber): number | null {
  const values = steps.map(step => step[name]).filter(value => value !== null);
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function tasksOf({ model, step }: ISide): Map<string, ITaskSide> {
  const { rows } = model;
  const found = new Map<string, ITaskRollout[]>();
  for (let row = 0; row < rows.size; row++) {
    if (!rows.present[row] || (step !== null && rows.numbers.step[row] !== step)) {
      continue;
    }
    const task = rows.text('task', row);
    const rollout = { id: rows.text('id', row), reward: rows.numbers.reward[row], state: rows.word('state', row) };
    found.get(task)?.push(rollout) ?? found.set(task, [rollout]);
  }
  return new Map([...found].map(([task, rollouts]) => [task, { rollouts, reward: meanReward(rollouts) }]));
}

function meanReward(rollouts: readonly ITaskRollout[]): number {
  const rewards = rollouts.map(({ reward }) => reward).filter(reward => !Number.isNaN(reward));
  return rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}
