/** What the rollouts of each step have in common: how their advantages lie, and why they ended. Pure, one pass. */

import type { RowTable } from './rows';

/** By step, all lists equally long; NaN where a step has no value. */
export interface IStepFacts {
  readonly steps: readonly number[];
  /** Advantages: least, a quarter below, median, a quarter above, largest. */
  readonly advantage: readonly (readonly number[])[];
  /** Outcomes other than `completed`, most frequent first, and how often each came in every step. */
  readonly failures: readonly { readonly outcome: string; readonly counts: readonly number[] }[];
}

export const QUANTILES = [0, 0.25, 0.5, 0.75, 1] as const;

export function stepFacts(rows: RowTable): IStepFacts {
  const advantages = new Map<number, number[]>();
  const failed = new Map<string, Map<number, number>>();
  for (let row = 0; row < rows.size; row++) {
    const step = rows.numbers.step[row];
    if (!rows.present[row] || Number.isNaN(step)) {
      continue;
    }
    const values = advantages.get(step) ?? [];
    advantages.set(step, values);
    if (!Number.isNaN(rows.numbers.advantage[row])) {
      values.push(rows.numbers.advantage[row]);
    }
    const outcome = rows.word('outcome', row);
    if (outcome && outcome !== 'completed') {
      const counts = failed.get(outcome) ?? new Map<number, number>();
      failed.set(outcome, counts.set(step, (counts.get(step) ?? 0) + 1));
    }
  }
  const steps = [...advantages.keys()].sort((a, b) => a - b);
  const sorted = steps.map(step => Float64Array.from(advantages.get(step) ?? []).sort());
  const total = (counts: ReadonlyMap<number, number>): number => [...counts.values()].reduce((sum, n) => sum + n, 0);
  return {
    steps,
    advantage: QUANTILES.map(share => sorted.map(values => quantile(values, share))),
    failures: [...failed]
      .sort(([, a], [, b]) => total(b) - total(a))
      .map(([outcome, counts]) => ({ outcome, counts: steps.map(step => counts.get(step) ?? 0) }))
  };
}

/** Linear between the two nearest of some ascending values; NaN of none. */
export function quantile(values: ArrayLike<number>, share: number): number {
  const at = (values.length - 1) * share;
  const below = Math.floor(at);
  return values.length === 0
    ? NaN
    : values[below] + (at - below) * ((values[below + 1] ?? values[below]) - values[below]);
}
