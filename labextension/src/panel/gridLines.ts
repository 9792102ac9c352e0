/** What the grid shows, line by line: the table's rows filtered, sorted and under headers that fold. No DOM. */

import { GroupKey, groupOfLine, groupRows, ILines } from '../grouping';
import { IFilter, IOrder, NEWEST_FIRST, NO_FILTER, orderRows, sharedPrefix } from '../order';
import type { RowTable } from '../rows';

export class GridLines {
  filter: IFilter = NO_FILTER;
  order: IOrder = NEWEST_FIRST;

  /** Places of the table that are shown, in order, those of folded groups included. */
  get index(): Uint32Array {
    return this._index;
  }

  /** Rows and headers, as they lie under each other. */
  get all(): ILines {
    return this._all;
  }

  get count(): number {
    return this._all.lines.length;
  }

  /** The text with which every task begins that is shown. */
  get prefix(): string {
    return this._prefix;
  }

  get grouping(): GroupKey | null {
    return this._by;
  }

  /** Whether a table is not as it was when it was last sorted. */
  isStale(rows: RowTable): boolean {
    return rows !== this._rows || rows.revision !== this._revision;
  }

  /** Filter and sort anew. */
  sort(rows: RowTable, now: number): void {
    this._rows = rows;
    this._revision = rows.revision;
    this._index = orderRows(rows, this.filter, this.order, now);
    this._prefix = sharedPrefix(this._index.length, place => rows.text('task', this._index[place]));
    this._arrange();
  }

  group(by: GroupKey | null): void {
    this._by = by;
    this._collapsed.clear();
    this._arrange();
  }

  foldAll(fold: boolean): void {
    this._collapsed.clear();
    if (fold) {
      this._all.groups.forEach(group => this._collapsed.add(group.key));
    }
    this._arrange();
  }

  /** Fold or unfold the group of a header; nothing where the line is none. */
  fold(line: number, fold: boolean): void {
    const here = this._all.lines[line];
    if (here === undefined || here >= 0) {
      return;
    }
    const { key } = this._all.groups[groupOfLine(here)];
    if (fold) {
      this._collapsed.add(key);
    } else {
      this._collapsed.delete(key);
    }
    this._arrange();
  }

  isFolded(line: number): boolean {
    return this.isHeader(line) && this._all.groups[groupOfLine(this._all.lines[line])].collapsed;
  }

  isHeader(line: number): boolean {
    return this._all.lines[line] < 0;
  }

  /** The header over a line, the line itself if it is one; -1 without any. */
  headerOf(line: number): number {
    let header = line;
    while (header >= 0 && !this.isHeader(header)) {
      header -= 1;
    }
    return header;
  }

  /** The rollout of a line; empty for a header. */
  idOf(line: number): string {
    const row = this._all.lines[line];
    return row >= 0 ? (this._rows?.text('id', row) ?? '') : '';
  }

  private _arrange(): void {
    if (this._rows) {
      this._all = groupRows(this._rows, this._index, this._by, this._collapsed);
    }
  }

  private _rows: RowTable | null = null;
  private _revision = -1;
  private _index: Uint32Array = new Uint32Array(0);
  private _all: ILines = { lines: new Int32Array(0), groups: [] };
  private _by: GroupKey | null = null;
  private readonly _collapsed = new Set<string>();
  private _prefix = '';
}
