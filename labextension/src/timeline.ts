/** Rollouts over time: what is where. Pure. */

import type { RowTable } from './rows';

/** Unix seconds. */
export interface ISpan {
  readonly from: number;
  readonly to: number;
}

/** From the first queued to the last finished of some rollouts; `null` when none has begun. */
export function spanOf(rows: RowTable, places: ArrayLike<number>, now: number): ISpan | null {
  let [from, to] = [Infinity, -Infinity];
  for (let i = 0; i < places.length; i++) {
    const began = beginOf(rows, places[i]);
    const ended = endOf(rows, places[i], now);
    from = began < from ? began : from;
    to = ended > to ? ended : to;
  }
  return from < to ? { from, to } : null;
}

/** When a rollout was queued, or began where that is not known. */
export function beginOf(rows: RowTable, row: number): number {
  const created = rows.numbers.created_at[row];
  return Number.isNaN(created) ? rows.numbers.started_at[row] : created;
}

/** When it ended; `now` while it runs, NaN before it began. */
export function endOf(rows: RowTable, row: number, now: number): number {
  const finished = rows.numbers.finished_at[row];
  if (!Number.isNaN(finished)) {
    return finished;
  }
  return rows.word('state', row) === 'running' ? now : rows.numbers.started_at[row];
}

/** Times for the axis: at most `most` of them, at round distances from the beginning. */
export function ticks(span: ISpan, most: number): readonly number[] {
  const length = span.to - span.from;
  const distances = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
  const distance = distances.find(seconds => length / seconds <= most) ?? length / most;
  return Array.from({ length: Math.floor(length / distance) + 1 }, (_, i) => i * distance);
}

/** Seconds in which the model worked on a rollout, and in which its calls were held. */
export function modelTime(calls: ArrayLike<number>): { readonly model: number; readonly held: number } {
  let [model, held] = [0, 0];
  for (let i = 0; i + 2 < calls.length; i += 3) {
    held += Math.max(0, calls[i + 1] - calls[i]);
    model += Math.max(0, calls[i + 2] - calls[i + 1]);
  }
  return { model, held };
}

/** Pauses that no update explains: somebody paused the lab, or an update is under way. */
export function otherPauses(
  pauses: readonly (readonly number[])[],
  updates: readonly (readonly number[])[]
): readonly (readonly number[])[] {
  return pauses.filter(([from, to]) => !updates.some(([, start, end]) => start < (to || Infinity) && end > from));
}
