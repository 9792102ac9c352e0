/** Which rows of the table are shown, and in which order. Pure; 10⁵ rows sort in tens of milliseconds. */

import { CODE_COLUMNS, CodeColumn, NUMBER_COLUMNS, NumberColumn, RowTable, TextColumn } from './rows';
import type { Shade } from './strip/shades';

/** A column to sort by: one of the table's, the place itself (`row`), or the computed `duration`. */
export type SortKey = NumberColumn | CodeColumn | TextColumn | 'row' | 'duration';

export interface IOrder {
  readonly key: SortKey;
  readonly descending: boolean;
}

export interface IFilter {
  /** Case-insensitive; matches id, group, task, harness, mode, outcome. */
  readonly text: string;
  /** States to show; empty shows all. */
  readonly states: ReadonlySet<string>;
  /** What was picked elsewhere: a problem's evidence, or steps brushed on a chart. */
  readonly focus?: IFocus | null;
}

/** Some rollouts, however they were chosen; each part that is given must match. */
export interface IFocus {
  readonly label: string;
  /** In the order of what to look at first, which is theirs until another is asked for. */
  readonly rollouts?: ReadonlySet<string>;
  readonly groups?: ReadonlySet<string>;
  /** First and last step. */
  readonly steps?: readonly [number, number];
  /** What its tokens are coloured by, where it is about tokens. */
  readonly shade?: Shade;
}

function inFocus(rows: RowTable, row: number, focus: IFocus): boolean {
  const step = rows.numbers.step[row];
  return (
    (!focus.rollouts || focus.rollouts.has(rows.text('id', row))) &&
    (!focus.groups || focus.groups.has(rows.text('group', row))) &&
    (!focus.steps || (step >= focus.steps[0] && step <= focus.steps[1]))
  );
}

export const NEWEST_FIRST: IOrder = { key: 'row', descending: true };
export const NO_FILTER: IFilter = { text: '', states: new Set() };

/** Seconds that a rollout took, or has taken until `now` while it runs; NaN before it started. */
export function rowDuration(rows: RowTable, row: number, now: number): number {
  const started = rows.numbers.started_at[row];
  const finished = rows.numbers.finished_at[row];
  if (!Number.isNaN(finished)) {
    return finished - started;
  }
  return rows.word('state', row) === 'running' ? now - started : NaN;
}

/** A shared beginning shorter than this is worth its space. */
const MIN_PREFIX = 24;

/**
 * The beginning that all of some tasks share, up to the last word boundary; empty when it is short.
 *
 * Data sets often ask every question in the same words; a narrow column would show nothing else.
 *
 * @param sampled - how many of the given places to look at, spread evenly.
 */
export function sharedPrefix(count: number, taskAt: (place: number) => string, sampled = 64): string {
  if (count < 2) {
    return '';
  }
  const stride = Math.max(1, Math.floor(count / sampled));
  let prefix = taskAt(0);
  for (let i = stride; i < count && prefix; i += stride) {
    const task = taskAt(i);
    let end = 0;
    while (end < prefix.length && prefix[end] === task[end]) {
      end += 1;
    }
    prefix = prefix.slice(0, end);
  }
  const words = prefix.slice(0, prefix.lastIndexOf(' ') + 1);
  return words.length >= MIN_PREFIX ? words : '';
}

function matches(rows: RowTable, row: number, needle: string): boolean {
  const outcome = rows.word('outcome', row);
  return (
    rows.text('task', row).toLowerCase().includes(needle) ||
    rows.text('id', row).toLowerCase().includes(needle) ||
    rows.text('group', row).toLowerCase().includes(needle) ||
    rows.text('harness', row).toLowerCase().includes(needle) ||
    rows.word('mode', row).includes(needle) ||
    outcome.includes(needle) ||
    outcome.replace(/_/g, ' ').includes(needle)
  );
}

function filtered(rows: RowTable, filter: IFilter): Uint32Array {
  const needle = filter.text.trim().toLowerCase();
  const words = rows.words('state');
  const shown = words.map(word => filter.states.size === 0 || filter.states.has(word));
  const states = rows.codes.state;
  const focus = filter.focus ?? null;
  const out = new Uint32Array(rows.count);
  let n = 0;
  for (let row = 0; row < rows.size; row++) {
    const wanted = rows.present[row] && shown[states[row]] && (!focus || inFocus(rows, row, focus));
    if (wanted && (!needle || matches(rows, row, needle))) {
      out[n++] = row;
    }
  }
  return out.subarray(0, n);
}

function isNumberColumn(key: SortKey): key is NumberColumn {
  return (NUMBER_COLUMNS as readonly string[]).includes(key);
}

function isCodeColumn(key: SortKey): key is CodeColumn {
  return (CODE_COLUMNS as readonly string[]).includes(key);
}

/** A number per row that sorts like the column; words are ranked by the alphabet once, not per comparison. */
function sortValues(rows: RowTable, key: SortKey, now: number): ArrayLike<number> | null {
  if (isNumberColumn(key)) {
    return rows.numbers[key];
  }
  if (isCodeColumn(key)) {
    const words = rows.words(key);
    const ranked = [...words].sort();
    const rank = words.map(word => ranked.indexOf(word));
    return Float64Array.from({ length: rows.size }, (_, row) => rank[rows.codes[key][row]]);
  }
  return key === 'duration' ? Float64Array.from({ length: rows.size }, (_, row) => rowDuration(rows, row, now)) : null;
}

/**
 * The places to show, in order. Rows without a value come last in either direction; equal values keep newest first.
 *
 * @param now - the kernel's clock, for the duration of what still runs.
 */
export function orderRows(rows: RowTable, filter: IFilter, order: IOrder, now: number): Uint32Array {
  const index = filtered(rows, filter);
  const sign = order.descending ? -1 : 1;
  if (order.key === 'row' && order.descending && filter.focus?.rollouts) {
    const rank = new Map([...filter.focus.rollouts].map((id, place) => [id, place]));
    const rankOf = (row: number): number => rank.get(rows.text('id', row)) ?? rank.size;
    return index.sort((a, b) => rankOf(a) - rankOf(b) || b - a);
  }
  if (order.key === 'row') {
    return order.descending ? index.reverse() : index;
  }
  const values = sortValues(rows, order.key, now);
  if (values) {
    return index.sort((a, b) => {
      const x = values[a];
      const y = values[b];
      if (x === y) {
        return b - a;
      }
      if (x !== x || y !== y) {
        return x !== x ? (y !== y ? b - a : 1) : -1;
      }
      return x < y ? -sign : sign;
    });
  }
  const texts = rows.texts[order.key as TextColumn];
  return index.sort((a, b) => {
    const x = texts[a] ?? '';
    const y = texts[b] ?? '';
    return x === y ? b - a : x < y ? -sign : sign;
  });
}
