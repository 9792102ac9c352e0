/** Which part of a call tree is in sight, and how large. Pixels; no DOM. */

import { ITree, nearest } from './layout';

const COLUMN = 46;
const ROW = 34;
const MARGIN = 22;
/** For the name of a thread, behind its last call. */
const NAME = 120;
/** Below this scale, marks say nothing. */
const LEGIBLE = 0.45;
const LEAST = 0.01;
const MOST = 2;

/** Rows and columns of which something may be seen. */
export interface ISight {
  readonly firstRow: number;
  readonly lastRow: number;
  readonly firstColumn: number;
  readonly lastColumn: number;
}

export class TreeWindow {
  /** Of the left upper corner, in the scaled picture. */
  x = 0;
  y = 0;
  scale = 1;
  width = 0;
  height = 0;

  /** Whether marks and letters say something at this scale. */
  get legible(): boolean {
    return this.scale >= LEGIBLE;
  }

  show(tree: ITree): void {
    this._tree = tree;
    this.move(this.x, this.y);
  }

  resize(width: number, height: number): void {
    const first = this.width === 0;
    this.width = width;
    this.height = height;
    if (first) {
      this.fit();
      this.scale = Math.max(LEGIBLE, this.scale); // the beginning, legible; the whole is one key away
    }
    this.move(this.x, this.y);
  }

  /** Everything in sight. */
  fit(): void {
    const [width, height] = this._size(1);
    this.scale = Math.max(LEAST, Math.min(1, this.width / Math.max(1, width), this.height / Math.max(1, height)));
    this.move(0, 0);
  }

  /** Around a point of the window, by default its middle. */
  zoom(factor: number, x = this.width / 2, y = this.height / 2): void {
    const scale = Math.max(LEAST, Math.min(MOST, this.scale * factor));
    const by = scale / this.scale;
    this.scale = scale;
    this.move((this.x + x) * by - x, (this.y + y) * by - y);
  }

  /** Look at another part; true when that moved anything. */
  move(x: number, y: number): boolean {
    const [width, height] = this._size(this.scale);
    const [oldX, oldY] = [this.x, this.y];
    this.x = Math.max(0, Math.min(width - this.width, x));
    this.y = Math.max(0, Math.min(height - this.height, y));
    return this.x !== oldX || this.y !== oldY;
  }

  /** Bring a call into the middle, unless it is in sight. */
  reveal(place: number): void {
    if (!this._tree || place < 0 || this.width === 0) {
      return;
    }
    const [x, y] = this.at(place);
    const edge = MARGIN * 1.5;
    if (x < edge || y < edge / 2 || x > this.width - edge || y > this.height - edge / 2) {
      this.move(this.x + x - this.width / 2, this.y + y - this.height / 2);
    }
  }

  /** Where a call is in the window. */
  at(place: number): [number, number] {
    const { column, row } = this._tree as ITree;
    return [(MARGIN + column[place] * COLUMN) * this.scale - this.x, (MARGIN + row[place] * ROW) * this.scale - this.y];
  }

  /** The call at a point of the window; -1 where there is none. */
  hit(x: number, y: number): number {
    const tree = this._tree;
    if (!tree || tree.rows.length === 0) {
      return -1;
    }
    const row = Math.round(((y + this.y) / this.scale - MARGIN) / ROW);
    const found = nearest(tree, row, Math.round(((x + this.x) / this.scale - MARGIN) / COLUMN));
    if (found < 0) {
      return -1;
    }
    const [cx, cy] = this.at(found);
    return Math.hypot(cx - x, cy - y) <= Math.max(8, 14 * this.scale) ? found : -1;
  }

  sight(): ISight {
    const [column, row, margin] = [COLUMN * this.scale, ROW * this.scale, MARGIN * this.scale];
    const rows = this._tree?.rows.length ?? 0;
    return {
      firstRow: Math.max(0, Math.floor((this.y - margin) / row) - 1),
      lastRow: Math.min(rows - 1, Math.ceil((this.y + this.height - margin) / row)),
      firstColumn: Math.floor((this.x - margin) / column) - 2,
      lastColumn: Math.ceil((this.x + this.width - margin) / column) + 1
    };
  }

  private _size(scale: number): [number, number] {
    const { columns = 0, rows = [] } = this._tree ?? {};
    return [((columns - 1) * COLUMN + 2 * MARGIN + NAME) * scale, ((rows.length - 1) * ROW + 2 * MARGIN) * scale];
  }

  private _tree: ITree | null = null;
}

/** How high a picture is worth being, in pixels. */
export function treeHeight(rows: number): number {
  return Math.min(340, Math.max(60, (rows - 1) * ROW + 2 * MARGIN));
}
