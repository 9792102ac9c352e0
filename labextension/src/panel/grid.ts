/**
 * The rollout grid: a virtualised table in plain DOM with the roles of an ARIA grid.
 *
 * Only the rows in sight exist as elements; they are reused while scrolling. React has no part in it: at ten frames a
 * second and 10⁵ rows, writing the few cells that changed is all there is to do.
 */

import { IFilter, IOrder, NEWEST_FIRST, NO_FILTER, orderRows, sharedPrefix, SortKey } from '../order';
import type { RowTable } from '../rows';
import { visibleLine } from '../text';
import { fitColumns, IGridColumn } from './gridColumns';

export const ROW_HEIGHT = 26;
/** Rows kept ready above and below the window. */
const OVERSCAN = 8;
/** Above this many rows a full re-sort waits its turn, so that sorting takes a small part of the time. */
const COSTLY_ROWS = 20_000;
const COSTLY_MS = 500;

export interface IGridOptions {
  readonly label: string;
  readonly translate: (text: string) => string;
  /** A row was clicked, or Enter was pressed on it. */
  readonly onOpen: (id: string) => void;
  /** How many rows are shown after filtering, and how many columns did not fit. */
  readonly onLayout: (shown: number, hiddenColumns: number) => void;
}

interface IRowElement {
  readonly node: HTMLElement;
  readonly cells: HTMLElement[];
  place: number;
}

const TEXTUAL: ReadonlySet<SortKey> = new Set(['state', 'outcome', 'mode', 'group', 'task']);

let gridCount = 0;

export class RolloutGrid {
  constructor(private readonly _options: IGridOptions) {
    this.node.className = 'll-grid';
    this.node.dataset.testid = 'll-grid';
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'grid');
    this.node.setAttribute('aria-label', _options.label);
    this._head.className = 'll-grid-head';
    this._head.setAttribute('role', 'row');
    this._head.setAttribute('aria-rowindex', '1');
    this._body.className = 'll-grid-body';
    this._body.setAttribute('role', 'rowgroup');
    this.node.append(this._head, this._body);
    this.node.addEventListener('scroll', this._onScroll, { passive: true });
    this.node.addEventListener('keydown', this._onKey);
    this._head.addEventListener('click', this._onHeadClick);
    this._body.addEventListener('click', this._onBodyClick);
    if (typeof ResizeObserver !== 'undefined') {
      this._observer = new ResizeObserver(() => this._resize());
      this._observer.observe(this.node);
    }
  }

  readonly node = document.createElement('div');

  /** Places of the table that are shown, in order. */
  get index(): Uint32Array {
    return this._index;
  }

  get order(): IOrder {
    return this._order;
  }

  /** Show a table as it is now. Cheap when nothing changed. */
  update(rows: RowTable, now: number, selected: string | undefined): void {
    const changed = rows !== this._rows || rows.revision !== this._revision;
    this._rows = rows;
    this._now = now;
    this._selected = selected;
    if (this._columns.length === 0) {
      this._layout();
    }
    if (changed && (rows.size < COSTLY_ROWS || performance.now() - this._sortedAt >= COSTLY_MS)) {
      this._sort();
    } else if (changed) {
      this._sortLater();
    }
    this._paint();
  }

  setFilter(filter: IFilter): void {
    this._filter = filter;
    this.node.scrollTop = 0;
    this._sort();
    this._paint();
  }

  setOrder(order: IOrder): void {
    this._order = order;
    this._paintHead();
    this._sort();
    this._paint();
  }

  /** Show all columns and scroll sideways, or only those that fit. */
  setAllColumns(all: boolean): void {
    this._allColumns = all;
    this._layout();
    this._paint();
  }

  dispose(): void {
    clearTimeout(this._sortTimer);
    cancelAnimationFrame(this._frame);
    this._observer?.disconnect();
    this.node.remove();
  }

  private _resize(): void {
    this._height = this.node.clientHeight;
    this._width = this.node.clientWidth;
    this._layout();
    this._paint();
  }

  private _layout(): void {
    const width = this._allColumns || this._width === 0 ? Infinity : this._width;
    const columns = fitColumns(width);
    const same =
      columns.length === this._columns.length && columns.every((column, i) => column.key === this._columns[i].key);
    if (same) {
      return;
    }
    this._columns = columns;
    this._body.replaceChildren();
    this._pool = [];
    const template = columns
      .map(({ key, width: pixels }) => (key === 'task' ? `minmax(${pixels}px, 1fr)` : `${pixels}px`))
      .join(' ');
    this.node.style.setProperty('--ll-grid-columns', template);
    this.node.style.setProperty('--ll-grid-min', `${columns.reduce((sum, column) => sum + column.width, 0)}px`);
    this.node.setAttribute('aria-colcount', String(columns.length));
    this._paintHead();
    this._report();
  }

  private _sort(): void {
    clearTimeout(this._sortTimer);
    this._sortTimer = undefined;
    if (!this._rows) {
      return;
    }
    const active = this._index[this._active];
    this._index = orderRows(this._rows, this._filter, this._order, this._now);
    this._prefix = sharedPrefix(this._rows, this._index);
    this._revision = this._rows.revision;
    this._sortedAt = performance.now();
    if (active !== undefined && this._active >= 0) {
      this._active = this._index.indexOf(active);
    }
    this._body.style.height = `${this._index.length * ROW_HEIGHT}px`;
    this.node.setAttribute('aria-rowcount', String(this._index.length + 1));
    this.node.dataset.shown = String(this._index.length);
    this._report();
  }

  private _sortLater(): void {
    this._sortTimer ??= setTimeout(() => {
      this._sort();
      this._paint();
    }, COSTLY_MS);
  }

  private _report(): void {
    const hidden = fitColumns(Infinity).length - fitColumns(this._width || Infinity).length;
    this._options.onLayout(this._index.length, hidden);
  }

  private _paintHead(): void {
    this._head.replaceChildren(
      ...this._columns.map((column, i) => {
        const cell = document.createElement('div');
        cell.setAttribute('role', 'columnheader');
        cell.setAttribute('aria-colindex', String(i + 1));
        const sorted = column.key === this._order.key;
        cell.setAttribute('aria-sort', sorted ? (this._order.descending ? 'descending' : 'ascending') : 'none');
        cell.className = `ll-cell ll-mod-${column.align}`;
        const button = document.createElement('button');
        button.type = 'button';
        button.dataset.key = column.key;
        button.title = this._options.translate(column.hint);
        button.textContent = this._options.translate(column.label);
        cell.append(button);
        return cell;
      })
    );
  }

  private _paint(): void {
    const rows = this._rows;
    if (!rows) {
      return;
    }
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW_HEIGHT) - OVERSCAN);
    const room = Math.ceil((this._height || 400) / ROW_HEIGHT) + 2 * OVERSCAN;
    const last = Math.min(this._index.length, first + room);
    while (this._pool.length < last - first) {
      this._pool.push(this._makeRow());
    }
    for (let i = 0; i < this._pool.length; i++) {
      const element = this._pool[i];
      // A row keeps its element while it stays in sight: element i shows the places that are i modulo the pool.
      const offset = first + ((((i - first) % this._pool.length) + this._pool.length) % this._pool.length);
      if (offset < last) {
        this._paintRow(element, rows, offset);
      } else {
        element.node.hidden = true;
        element.place = -1;
      }
    }
    const active = this._active >= first && this._active < last ? this._rowId(this._active) : '';
    if (active) {
      this.node.setAttribute('aria-activedescendant', active);
    } else {
      this.node.removeAttribute('aria-activedescendant');
    }
  }

  private _makeRow(): IRowElement {
    const node = document.createElement('div');
    node.className = 'll-grid-row';
    node.dataset.testid = 'll-grid-row';
    node.setAttribute('role', 'row');
    const cells = this._columns.map((column, i) => {
      const cell = document.createElement('div');
      cell.className = `ll-cell ll-mod-${column.align} ll-col-${column.key}`;
      cell.setAttribute('role', 'gridcell');
      cell.setAttribute('aria-colindex', String(i + 1));
      return cell;
    });
    node.append(...cells);
    this._body.append(node);
    return { node, cells, place: -1 };
  }

  private _paintRow(element: IRowElement, rows: RowTable, offset: number): void {
    const { node, cells } = element;
    const row = this._index[offset];
    if (element.place !== offset) {
      element.place = offset;
      node.hidden = false;
      node.id = this._rowId(offset);
      node.style.transform = `translateY(${offset * ROW_HEIGHT}px)`;
      node.setAttribute('aria-rowindex', String(offset + 2));
    }
    const id = rows.text('id', row);
    const state = rows.word('state', row);
    setData(node, 'rolloutId', id);
    setData(node, 'state', state);
    setData(node, 'infrastructure', isInfrastructure(rows.word('outcome', row)) ? 'true' : 'false');
    node.classList.toggle('ll-mod-active', offset === this._active);
    node.setAttribute('aria-selected', String(id !== '' && id === this._selected));
    const context = { now: this._now, prefix: this._prefix };
    this._columns.forEach((column, i) => {
      const text = column.show(rows, row, context);
      if (cells[i].textContent !== text) {
        cells[i].textContent = text;
        if (column.key === 'task') {
          cells[i].title = visibleLine(rows.text('task', row), 400);
        }
      }
      if (column.key === 'reward') {
        cells[i].style.setProperty('--ll-share', share(rows.numbers.reward[row]));
      }
    });
  }

  private _rowId(offset: number): string {
    return `${this._id}-${offset}`;
  }

  private _move(to: number): void {
    const target = Math.max(0, Math.min(this._index.length - 1, to));
    if (this._index.length === 0) {
      return;
    }
    this._active = target;
    const top = target * ROW_HEIGHT;
    const window = this._height - ROW_HEIGHT; // the head covers one row
    if (top < this.node.scrollTop) {
      this.node.scrollTop = top;
    } else if (top + ROW_HEIGHT > this.node.scrollTop + window) {
      this.node.scrollTop = top + ROW_HEIGHT - window;
    }
    this._paint();
  }

  private _open(offset: number): void {
    const row = this._index[offset];
    const id = row === undefined ? '' : (this._rows?.text('id', row) ?? '');
    if (id) {
      this._options.onOpen(id);
    }
  }

  private _onKey = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(this._height / ROW_HEIGHT) - 2);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: this._active + 1,
      ArrowUp: this._active - 1,
      PageDown: this._active + page,
      PageUp: this._active - page,
      Home: 0,
      End: this._index.length - 1
    };
    if (event.target !== this.node || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    if (event.key in steps) {
      this._move(steps[event.key]);
    } else if (event.key === 'Enter') {
      this._open(this._active);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  private _onHeadClick = (event: Event): void => {
    const key = (event.target as HTMLElement).closest<HTMLElement>('[data-key]')?.dataset.key as SortKey | undefined;
    if (!key) {
      return;
    }
    // Numbers begin with the largest, words with A; the third click returns to newest first.
    const first = !TEXTUAL.has(key);
    if (key !== this._order.key) {
      this.setOrder({ key, descending: first });
    } else {
      this.setOrder(this._order.descending === first ? { key, descending: !first } : NEWEST_FIRST);
    }
  };

  private _onBodyClick = (event: Event): void => {
    const node = (event.target as HTMLElement).closest('.ll-grid-row');
    const element = this._pool.find(row => row.node === node);
    if (element && element.place >= 0 && !window.getSelection()?.toString()) {
      this._active = element.place;
      this._open(element.place);
    }
  };

  private _onScroll = (): void => {
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      this._paint();
    });
  };

  private readonly _id = `ll-grid-${gridCount++}`;
  private readonly _head = document.createElement('div');
  private readonly _body = document.createElement('div');
  private readonly _observer: ResizeObserver | undefined;
  private _rows: RowTable | null = null;
  private _revision = -1;
  private _now = 0;
  private _selected: string | undefined;
  private _columns: readonly IGridColumn[] = [];
  private _allColumns = false;
  private _pool: IRowElement[] = [];
  private _index: Uint32Array = new Uint32Array(0);
  private _filter: IFilter = NO_FILTER;
  private _order: IOrder = NEWEST_FIRST;
  private _active = -1;
  private _prefix = '';
  private _width = 0;
  private _height = 0;
  private _frame = 0;
  private _sortedAt = -Infinity;
  private _sortTimer: ReturnType<typeof setTimeout> | undefined;
}

const INFRASTRUCTURE = new Set([
  'boot_timeout',
  'oom',
  'image_pull',
  'evicted',
  'grader_error',
  'policy_error',
  'cancelled',
  'lost'
]);

/** Outcomes that say nothing about the agent and are never turned into reward 0. */
export function isInfrastructure(outcome: string): boolean {
  return INFRASTRUCTURE.has(outcome);
}

function setData(node: HTMLElement, key: string, value: string): void {
  if (node.dataset[key] !== value) {
    node.dataset[key] = value;
  }
}

/** A reward as the width of its bar, for the usual range 0…1. */
function share(reward: number): string {
  return Number.isNaN(reward) ? '0%' : `${Math.max(0, Math.min(1, reward)) * 100}%`;
}
