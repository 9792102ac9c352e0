/** The head of the grid: one button per column that sorts by it. */

import { IOrder, NEWEST_FIRST, SortKey } from '../order';
import type { IGridColumn } from './gridColumns';

const TEXTUAL: ReadonlySet<SortKey> = new Set(['state', 'outcome', 'mode', 'group', 'task', 'harness']);

export function makeHead(
  columns: readonly IGridColumn[],
  order: IOrder,
  translate: (text: string) => string
): HTMLElement[] {
  return columns.map((column, i) => {
    const cell = document.createElement('div');
    cell.setAttribute('role', 'columnheader');
    cell.setAttribute('aria-colindex', String(i + 1));
    const sorted = column.key === order.key;
    cell.setAttribute('aria-sort', sorted ? (order.descending ? 'descending' : 'ascending') : 'none');
    cell.className = `ll-cell ll-mod-${column.align}`;
    const button = document.createElement('button');
    button.type = 'button';
    button.dataset.key = column.key;
    button.title = translate(column.hint);
    button.textContent = translate(column.label);
    cell.append(button);
    return cell;
  });
}

/** Numbers begin with the largest, words with A; the third click returns to newest first. */
export function nextOrder(now: IOrder, key: SortKey): IOrder {
  const first = !TEXTUAL.has(key);
  if (key !== now.key) {
    return { key, descending: first };
  }
  return now.descending === first ? { key, descending: !first } : NEWEST_FIRST;
}
