/**
 * The rollout grid: a virtualised table in plain DOM with the roles of an ARIA grid, a tree grid where rows are grouped.
 *
 * Only the rows in sight exist as elements. React has no part in it: at ten frames a second and 10⁵ rows, writing the
 * few cells that changed is all there is to do.
 */

import type { GroupKey } from '../grouping';
import type { IFilter, IOrder, SortKey } from '../order';
import type { RowTable } from '../rows';
import { fitColumns, IGridColumn } from './gridColumns';
import { makeHead, nextOrder } from './gridHead';
import { GridLines } from './gridLines';
import { GridRows, ROW_HEIGHT } from './gridRows';

/** Above this many rows a full re-sort waits its turn, so that sorting takes a small part of the time. */
const COSTLY_ROWS = 20_000;
const COSTLY_MS = 500;

export interface IGridOptions {
  readonly label: string;
  readonly translate: (text: string, ...values: string[]) => string;
  /** A row was clicked, or Enter was pressed on it. */
  readonly onOpen: (id: string) => void;
  /** How many rows are shown after filtering, and how many columns did not fit. */
  readonly onLayout: (shown: number, hiddenColumns: number) => void;
}

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
    this._lineRows = new GridRows(this._body, `ll-grid-${gridCount++}`, _options.translate);
    this.node.append(this._head, this._body);
    this.node.addEventListener('scroll', () => this._paint(), { passive: true });
    this.node.addEventListener('keydown', this._onKey);
    this._head.addEventListener('click', this._onHeadClick);
    this._body.addEventListener('click', this._onBodyClick);
    if (typeof ResizeObserver !== 'undefined') {
      this._observer = new ResizeObserver(() => this._resize());
      this._observer.observe(this.node);
    }
  }

  readonly node = document.createElement('div');

  /** Places of the table that are shown, in order, those of folded groups included. */
  get index(): Uint32Array {
    return this._lines.index;
  }

  /** Show a table as it is now. Cheap when nothing changed. */
  update(rows: RowTable, now: number, selected: string | undefined): void {
    const changed = this._lines.isStale(rows);
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
    this._lines.filter = filter;
    this.node.scrollTop = 0;
    this._sort();
    this._paint();
  }

  setOrder(order: IOrder): void {
    this._lines.order = order;
    this._paintHead();
    this._sort();
    this._paint();
  }

  /** Put rows under headers that can be folded; `null` shows them in one list. */
  setGrouping(by: GroupKey | null): void {
    if (by === this._lines.grouping) {
      return;
    }
    this.node.setAttribute('role', by === null ? 'grid' : 'treegrid');
    this.node.scrollTop = 0;
    this._active = -1;
    this._lineRows.setColumns(this._columns); // elements forget their place in the tree
    this._arrange(() => this._lines.group(by));
    this._paint();
  }

  /** Fold all groups, or unfold them. */
  foldAll(fold: boolean): void {
    this._active = -1;
    this._arrange(() => this._lines.foldAll(fold));
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
    this._lineRows.setColumns(columns);
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
    const rows = this._rows;
    if (!rows) {
      return;
    }
    this._arrange(() => this._lines.sort(rows, this._now));
    this._sortedAt = performance.now();
    this._report();
  }

  /** Lay the lines anew; the keyboard's mark stays on its row. */
  private _arrange(change: () => void): void {
    const active = this._active >= 0 ? this._lines.all.lines[this._active] : undefined;
    change();
    if (active !== undefined) {
      this._active = this._lines.all.lines.indexOf(active);
    }
    this._body.style.height = `${this._lines.count * ROW_HEIGHT}px`;
    this.node.setAttribute('aria-rowcount', String(this._lines.count + 1));
    this.node.dataset.shown = String(this._lines.index.length);
  }

  private _sortLater(): void {
    this._sortTimer ??= setTimeout(() => {
      this._sort();
      this._paint();
    }, COSTLY_MS);
  }

  private _report(): void {
    const hidden = fitColumns(Infinity).length - fitColumns(this._width || Infinity).length;
    this._options.onLayout(this._lines.index.length, hidden);
  }

  private _paintHead(): void {
    this._head.replaceChildren(...makeHead(this._columns, this._lines.order, this._options.translate));
  }

  private _paint(): void {
    if (!this._rows) {
      return;
    }
    this._lineRows.paint(this.node.scrollTop, this._height || 400, {
      rows: this._rows,
      lines: this._lines.all,
      active: this._active,
      selected: this._selected,
      now: this._now,
      prefix: this._lines.prefix
    });
    if (this._lineRows.has(this._active)) {
      this.node.setAttribute('aria-activedescendant', this._lineRows.idOf(this._active));
    } else {
      this.node.removeAttribute('aria-activedescendant');
    }
  }

  private _move(to: number): void {
    const { count } = this._lines;
    if (count === 0) {
      return;
    }
    this._active = Math.max(0, Math.min(count - 1, to));
    const top = this._active * ROW_HEIGHT;
    const window = this._height - ROW_HEIGHT; // the head covers one row
    if (top < this.node.scrollTop) {
      this.node.scrollTop = top;
    } else if (top + ROW_HEIGHT > this.node.scrollTop + window) {
      this.node.scrollTop = top + ROW_HEIGHT - window;
    }
    this._paint();
  }

  /** Open the rollout of a line, or fold and unfold the group of a header. */
  private _open(line: number): void {
    if (this._lines.isHeader(line)) {
      this._fold(line, !this._lines.isFolded(line));
    } else if (this._lines.idOf(line)) {
      this._options.onOpen(this._lines.idOf(line));
    }
  }

  private _fold(line: number, fold: boolean): void {
    this._arrange(() => this._lines.fold(line, fold));
    this._paint();
  }

  /** Left on a row goes to its header, on a header folds it; right unfolds. */
  private _sideways(left: boolean): void {
    const header = this._lines.headerOf(this._active);
    if (header >= 0 && header === this._active) {
      this._fold(header, left);
    } else if (header >= 0 && left) {
      this._move(header);
    }
  }

  private _onKey = (event: KeyboardEvent): void => {
    if (event.target !== this.node || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const page = Math.max(1, Math.floor(this._height / ROW_HEIGHT) - 2);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: this._active + 1,
      ArrowUp: this._active - 1,
      PageDown: this._active + page,
      PageUp: this._active - page,
      Home: 0,
      End: this._lines.count - 1
    };
    if (event.key in steps) {
      this._move(steps[event.key]);
    } else if (event.key === 'Enter' || event.key === ' ') {
      this._open(this._active);
    } else if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
      this._sideways(event.key === 'ArrowLeft');
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  private _onHeadClick = (event: Event): void => {
    const key = (event.target as HTMLElement).closest<HTMLElement>('[data-key]')?.dataset.key as SortKey | undefined;
    if (key) {
      this.setOrder(nextOrder(this._lines.order, key));
    }
  };

  private _onBodyClick = (event: Event): void => {
    const line = this._lineRows.lineOf(event.target as Element);
    if (line >= 0 && !window.getSelection()?.toString()) {
      this._active = line;
      this._open(line);
    }
  };

  private readonly _head = document.createElement('div');
  private readonly _body = document.createElement('div');
  private readonly _lineRows: GridRows;
  private readonly _observer: ResizeObserver | undefined;
  private _rows: RowTable | null = null;
  private _now = 0;
  private _selected: string | undefined;
  private _columns: readonly IGridColumn[] = [];
  private _allColumns = false;
  private readonly _lines = new GridLines();
  private _active = -1;
  private _width = 0;
  private _height = 0;
  private _sortedAt = -Infinity;
  private _sortTimer: ReturnType<typeof setTimeout> | undefined;
}
