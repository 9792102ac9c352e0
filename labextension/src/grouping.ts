/** The rows that are shown, under headers that can be folded. Pure. */

import { words } from './format';
import { RowTable } from './rows';
import { visibleLine } from './text';

export const GROUP_KEYS = ['step', 'group', 'task', 'harness', 'outcome'] as const;
export type GroupKey = (typeof GROUP_KEYS)[number];

/** Rows under one header, and what they have in common. */
export interface IRowGroup {
  readonly key: string;
  readonly label: string;
  readonly rows: number;
  /** Mean of the valid rewards; NaN without any. */
  readonly reward: number;
  readonly failed: number;
  readonly running: number;
  readonly collapsed: boolean;
}

/** What stands on each line: a place of the table, or, negative, a header: −1 for the first group, −2 for the second. */
export interface ILines {
  readonly lines: Int32Array;
  readonly groups: readonly IRowGroup[];
}

export const headerLine = (group: number): number => -1 - group;
export const groupOfLine = (line: number): number => -1 - line;

/** Groups stand in the order of their first row, rows in theirs. */
export function groupRows(
  rows: RowTable,
  index: Uint32Array,
  by: GroupKey | null,
  collapsed: ReadonlySet<string>
): ILines {
  if (by === null) {
    return { lines: Int32Array.from(index), groups: [] };
  }
  const members = new Map<string, number[]>();
  for (const row of index) {
    const key = keyOf(rows, row, by);
    const known = members.get(key);
    if (known) {
      known.push(row);
    } else {
      members.set(key, [row]);
    }
  }
  const lines = new Int32Array(index.length + members.size);
  const groups: IRowGroup[] = [];
  let n = 0;
  for (const [key, places] of members) {
    const folded = collapsed.has(key);
    lines[n++] = headerLine(groups.length);
    groups.push({ ...facts(rows, places), key, label: labelOf(key, by), collapsed: folded });
    if (!folded) {
      lines.set(places, n);
      n += places.length;
    }
  }
  return { lines: lines.subarray(0, n), groups };
}

function keyOf(rows: RowTable, row: number, by: GroupKey): string {
  if (by === 'step') {
    const step = rows.numbers.step[row];
    return Number.isNaN(step) ? '' : String(step);
  }
  return by === 'outcome' ? rows.word('outcome', row) : rows.text(by, row);
}

function labelOf(key: string, by: GroupKey): string {
  if (key === '') {
    return by === 'outcome' ? 'not ended' : by === 'step' ? 'in no step' : `no ${by}`;
  }
  return by === 'step' ? `step ${key}` : by === 'outcome' ? words(key) : visibleLine(key, 120);
}

function facts(rows: RowTable, places: readonly number[]): Pick<IRowGroup, 'rows' | 'reward' | 'failed' | 'running'> {
  let [sum, rewarded, failed, running] = [0, 0, 0, 0];
  for (const row of places) {
    const reward = rows.numbers.reward[row];
    if (!Number.isNaN(reward)) {
      sum += reward;
      rewarded += 1;
    }
    const state = rows.word('state', row);
    failed += state === 'failed' ? 1 : 0;
    running += state === 'running' ? 1 : 0;
  }
  return { rows: places.length, reward: rewarded > 0 ? sum / rewarded : NaN, failed, running };
}
