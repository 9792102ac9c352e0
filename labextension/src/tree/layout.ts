/**
 * The call tree on a grid: a row for every thread, a column for every call in it.
 *
 * A thread begins one column right of the call that began it. Threads that begin later stand nearer to it, so that no
 * line crosses another. Pure; 20,000 calls take some milliseconds.
 */

import { hierarchy, HierarchyNode } from 'd3-hierarchy';

import type { ICallDetail } from '../wireRollout';
import { callsBefore } from './threads';

export interface ITree {
  /** Column and row of every call. */
  readonly column: Int32Array;
  readonly row: Int32Array;
  /** Place of the call before it; -1 for none. */
  readonly before: Int32Array;
  /** Places of the calls in every row, from left to right. */
  readonly rows: readonly (readonly number[])[];
  readonly columns: number;
}

interface IThread {
  readonly calls: number[];
  readonly threads: IThread[];
}

/** Calls in the order of their arrival → their places. */
export function layTree(calls: readonly ICallDetail[]): ITree {
  const before = callsBefore(calls);
  const column = new Int32Array(calls.length);
  const row = new Int32Array(calls.length);
  const root: IThread = { calls: [], threads: [] };
  const threadOf: IThread[] = [];
  calls.forEach((call, place) => {
    const parent = before[place];
    column[place] = parent < 0 ? 0 : column[parent] + 1;
    const goesOn = parent >= 0 && calls[parent].thread === call.thread && lastOf(threadOf[parent]) === parent;
    const thread = goesOn ? threadOf[parent] : { calls: [], threads: [] };
    if (!goesOn) {
      (parent < 0 ? root : threadOf[parent]).threads.push(thread);
    }
    thread.calls.push(place);
    threadOf[place] = thread;
  });
  const rows: number[][] = [];
  const start = (node: HierarchyNode<IThread>): number => column[node.data.calls[0]];
  hierarchy(root, thread => thread.threads)
    .sort((a, b) => (a.depth > 1 ? start(b) - start(a) : a.data.calls[0] - b.data.calls[0]))
    .eachBefore(node => {
      if (node.depth > 0) {
        node.data.calls.forEach(place => (row[place] = rows.length));
        rows.push(node.data.calls);
      }
    });
  return { column, row, before, rows, columns: 1 + column.reduce((most, at) => Math.max(most, at), -1) };
}

function lastOf(thread: IThread): number {
  return thread.calls[thread.calls.length - 1];
}

/** The call of a row that stands at a column, or nearest to it; -1 in an empty tree. */
export function nearest(tree: ITree, row: number, column: number): number {
  const calls = tree.rows[row] ?? [];
  let low = 0;
  let high = calls.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tree.column[calls[middle]] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const [left, right] = [calls[low - 1], calls[low]];
  if (right === undefined) {
    return -1;
  }
  return left !== undefined && column - tree.column[left] < tree.column[right] - column ? left : right;
}

/** Where an arrow key leads. */
export function neighbour(tree: ITree, place: number, key: string): number {
  const { row, column, rows, before } = tree;
  if (place < 0) {
    return rows.length > 0 ? rows[0][0] : -1;
  }
  const inRow = rows[row[place]];
  const at = inRow.indexOf(place);
  switch (key) {
    case 'ArrowLeft':
      return inRow[at - 1] ?? (before[place] >= 0 ? before[place] : place);
    case 'ArrowRight':
      return inRow[at + 1] ?? place;
    case 'ArrowDown':
      return row[place] + 1 < rows.length ? nearest(tree, row[place] + 1, column[place]) : place;
    case 'ArrowUp':
      return row[place] > 0 ? nearest(tree, row[place] - 1, column[place]) : place;
    case 'Home':
      return inRow[0];
    case 'End':
      return inRow[inRow.length - 1];
    default:
      return place;
  }
}
