/** Two steps of a run, side by side. Pure. */

import type { RunModel } from './model';
import { STEP_NUMBERS, StepNumber } from './wire';

export interface IMetricPair {
  readonly name: StepNumber;
  readonly a: number | null;
  readonly b: number | null;
}

/** One task's rollouts in one step. */
export interface ITaskSide {
  readonly rollouts: readonly string[];
  /** Mean of the valid rewards; NaN without any. */
  readonly reward: number;
}

export interface ITaskPair {
  readonly task: string;
  readonly a: ITaskSide | null;
  readonly b: ITaskSide | null;
}

/** Numbers that at least one of the steps has. */
export function compareMetrics(model: RunModel, a: number, b: number): readonly IMetricPair[] {
  const [first, second] = [a, b].map(index => model.steps.find(step => step.index === index));
  return STEP_NUMBERS.map(name => ({ name, a: first?.[name] ?? null, b: second?.[name] ?? null })).filter(
    pair => pair.a !== null || pair.b !== null
  );
}

/** Tasks of both steps first, by the difference of their rewards, largest first. */
export function compareTasks(model: RunModel, a: number, b: number): readonly ITaskPair[] {
  const [left, right] = [tasksOf(model, a), tasksOf(model, b)];
  const pairs = [...new Set([...left.keys(), ...right.keys()])].map(task => ({
    task,
    a: left.get(task) ?? null,
    b: right.get(task) ?? null
  }));
  const distance = (pair: ITaskPair): number => (pair.a && pair.b ? Math.abs(pair.a.reward - pair.b.reward) || 0 : -1);
  return pairs.sort((x, y) => distance(y) - distance(x));
}

function tasksOf(model: RunModel, step: number): Map<string, ITaskSide> {
  const { rows } = model;
  const found = new Map<string, { rollouts: string[]; rewards: number[] }>();
  for (let row = 0; row < rows.size; row++) {
    if (!rows.present[row] || rows.numbers.step[row] !== step) {
      continue;
    }
    const task = rows.text('task', row);
    const side = found.get(task) ?? { rollouts: [], rewards: [] };
    found.set(task, side);
    side.rollouts.push(rows.text('id', row));
    if (!Number.isNaN(rows.numbers.reward[row])) {
      side.rewards.push(rows.numbers.reward[row]);
    }
  }
  return new Map(
    [...found].map(([task, { rollouts, rewards }]) => [
      task,
      { rollouts, reward: rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length }
    ])
  );
}
