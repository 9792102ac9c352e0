/**
 * The call tree on canvas: pan by dragging or with the wheel, zoom with Ctrl and the wheel, move with the arrow keys.
 *
 * Only what is in sight is drawn; far out, calls of one kind are one block.
 */

import { ITree, nearest, neighbour } from '../tree/layout';
import { drawMark, Mark, MARK_COLORS } from '../tree/marks';
import { prepare, themeColor, themeFont } from './paint';

const COLUMN = 46;
const ROW = 34;
const MARGIN = 22;
const RADIUS = 7;
/** Below this scale, marks say nothing. */
const LEGIBLE = 0.45;
const MOST = 2;

export interface ITreeCall {
  readonly mark: Mark;
  /** Beside its mark. */
  readonly label: string;
  /** Behind the last call of its thread. */
  readonly thread: string;
}

export interface ICallTreeOptions {
  readonly label: string;
  readonly onCall: (place: number) => void;
}

export class CallTree {
  constructor(private readonly _options: ICallTreeOptions) {
    this.node.className = 'll-tree-canvas';
    this.node.tabIndex = 0;
    this.node.dataset.testid = 'll-tree';
    this.node.setAttribute('role', 'application');
    this.node.setAttribute('aria-label', _options.label);
    this.node.append(this._canvas);
    this.node.addEventListener('pointerdown', this._onDown);
    this.node.addEventListener('pointermove', this._onMove);
    this.node.addEventListener('pointerup', this._onUp);
    this.node.addEventListener('keydown', this._onKey);
    this.node.addEventListener('wheel', this._onWheel, { passive: false });
    if (typeof ResizeObserver !== 'undefined') {
      this._observer = new ResizeObserver(() => this._resize());
      this._observer.observe(this.node);
    }
  }

  readonly node = document.createElement('div');

  show(tree: ITree, calls: readonly ITreeCall[]): void {
    this._tree = tree;
    this._calls = calls;
    this.node.dataset.calls = String(calls.length);
    this.node.dataset.rows = String(tree.rows.length);
    if (this._selected >= calls.length) {
      this._selected = -1;
    }
    this._move(this._x, this._y);
  }

  /** -1 selects none. */
  select(place: number): void {
    if (place !== this._selected) {
      this._selected = place;
      this._reveal(place);
      this._schedule();
    }
  }

  /** Everything in sight. */
  fit(): void {
    const [width, height] = this._size(1);
    const scale = Math.min(1, this._width / Math.max(1, width), this._height / Math.max(1, height));
    this._scale = Math.max(0.01, scale);
    this._move(0, 0);
  }

  zoom(factor: number, x = this._width / 2, y = this._height / 2): void {
    const scale = Math.max(0.01, Math.min(MOST, this._scale * factor));
    const by = scale / this._scale;
    this._scale = scale;
    this._move((this._x + x) * by - x, (this._y + y) * by - y);
  }

  /** The theme changed. */
  repaint(): void {
    this._colors.clear();
    this._schedule();
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._observer?.disconnect();
    this.node.remove();
  }

  private _resize(): void {
    const first = this._width === 0;
    this._width = this.node.clientWidth;
    this._height = this.node.clientHeight;
    if (first) {
      this.fit();
      if (this._scale < LEGIBLE) {
        this._scale = LEGIBLE; // the beginning, legible; the whole is one key away
      }
    }
    this._move(this._x, this._y);
  }

  private _size(scale: number): [number, number] {
    const { columns = 0, rows = [] } = this._tree ?? {};
    return [((columns - 1) * COLUMN + 2 * MARGIN + 120) * scale, ((rows.length - 1) * ROW + 2 * MARGIN) * scale];
  }

  /** Look at another part; true when that moved anything. */
  private _move(x: number, y: number): boolean {
    const [width, height] = this._size(this._scale);
    const [oldX, oldY] = [this._x, this._y];
    this._x = Math.max(0, Math.min(width - this._width, x));
    this._y = Math.max(0, Math.min(height - this._height, y));
    this._schedule();
    return this._x !== oldX || this._y !== oldY;
  }

  private _reveal(place: number): void {
    if (!this._tree || place < 0 || this._width === 0) {
      return;
    }
    const [x, y] = this._at(place);
    const edge = MARGIN * 1.5;
    const out = x < edge || y < edge / 2 || x > this._width - edge || y > this._height - edge / 2;
    if (out) {
      this._move(this._x + x - this._width / 2, this._y + y - this._height / 2);
    }
  }

  private _at(place: number): [number, number] {
    const tree = this._tree as ITree;
    return [
      (MARGIN + tree.column[place] * COLUMN) * this._scale - this._x,
      (MARGIN + tree.row[place] * ROW) * this._scale - this._y
    ];
  }

  private _color(color: string): string {
    let found = this._colors.get(color);
    if (found === undefined) {
      found = themeColor(this.node, color);
      this._colors.set(color, found);
    }
    return found;
  }

  private _schedule(): void {
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      this._paint();
    });
  }

  private _paint(): void {
    const tree = this._tree;
    const context = prepare(this._canvas, this._width, this._height);
    if (!context || !tree) {
      return;
    }
    const [column, row] = [COLUMN * this._scale, ROW * this._scale];
    const margin = MARGIN * this._scale;
    const firstRow = Math.max(0, Math.floor((this._y - margin) / row) - 1);
    const lastRow = Math.min(tree.rows.length - 1, Math.ceil((this._y + this._height - margin) / row));
    const firstColumn = Math.floor((this._x - margin) / column) - 2;
    const lastColumn = Math.ceil((this._x + this._width - margin) / column) + 1;
    const letters = this._scale >= LEGIBLE;
    context.font = themeFont(this.node, 10);
    context.textBaseline = 'middle';
    for (let r = firstRow; r <= lastRow; r++) {
      this._paintRow(context, r, firstColumn, lastColumn, letters);
    }
    this._paintBegins(context, firstRow, firstColumn, lastColumn);
  }

  private _paintRow(context: CanvasRenderingContext2D, row: number, from: number, to: number, letters: boolean): void {
    const tree = this._tree as ITree;
    const calls = tree.rows[row];
    const [first, last] = [calls[0], calls[calls.length - 1]];
    if (tree.column[last] < from || tree.column[first] > to) {
      return;
    }
    const [left, y] = this._at(first);
    const right = this._at(last)[0];
    context.strokeStyle = this._color('var(--jp-border-color1)');
    context.lineWidth = letters ? 2 : 1;
    context.beginPath();
    context.moveTo(Math.max(-1, left), y);
    context.lineTo(Math.min(this._width + 1, right), y);
    context.stroke();
    if (letters) {
      const begin = calls.indexOf(nearest(tree, row, from));
      for (let i = begin; i < calls.length && tree.column[calls[i]] <= to; i++) {
        this._paintCall(context, calls[i]);
      }
    } else {
      this._paintRuns(context, calls, y);
    }
    const { thread } = this._calls[first];
    if (letters && thread) {
      context.fillStyle = this._color('var(--jp-ui-font-color2)');
      context.fillText(thread, right + RADIUS * this._scale + 22, y);
    }
  }

  private _paintCall(context: CanvasRenderingContext2D, place: number): void {
    const [x, y] = this._at(place);
    const { mark, label } = this._calls[place];
    const r = RADIUS * Math.min(1.2, this._scale);
    if (place === this._selected) {
      this._paintSelected(context, x, y, r);
    }
    context.fillStyle = this._color('var(--jp-layout-color1)');
    context.fillRect(x - r, y - r, 2 * r, 2 * r); // the line of the thread ends at the mark
    context.fillStyle = context.strokeStyle = this._color(MARK_COLORS[mark]);
    drawMark(context, mark, x, y, r);
    context.fillStyle = this._color('var(--jp-ui-font-color2)');
    context.fillText(label, x + r + 4, y + 9 * this._scale);
  }

  /** Far out: calls of one kind, one after the other, are one block. */
  private _paintRuns(context: CanvasRenderingContext2D, calls: readonly number[], y: number): void {
    const size = Math.max(1.5, 2 * RADIUS * this._scale);
    let start = 0;
    for (let i = 1; i <= calls.length; i++) {
      const { mark } = this._calls[calls[start]];
      if (i === calls.length || this._calls[calls[i]].mark !== mark) {
        const left = this._at(calls[start])[0] - size / 2;
        const right = this._at(calls[i - 1])[0] + size / 2;
        context.fillStyle = this._color(MARK_COLORS[mark]);
        context.fillRect(left, y - size / 2, right - left, size);
        start = i;
      }
    }
    if (this._selected >= 0 && this._tree?.row[this._selected] === this._tree?.row[calls[0]]) {
      this._paintSelected(context, this._at(this._selected)[0], y, size / 2);
    }
  }

  private _paintSelected(context: CanvasRenderingContext2D, x: number, y: number, r: number): void {
    context.strokeStyle = this._color('var(--jp-ui-font-color0)');
    context.lineWidth = 2;
    context.strokeRect(x - r - 4, y - r - 4, 2 * r + 8, 2 * r + 8);
  }

  /** From the call that began a thread down to its first call; only lines with an end in sight are drawn. */
  private _paintBegins(context: CanvasRenderingContext2D, firstRow: number, from: number, to: number): void {
    const tree = this._tree as ITree;
    context.strokeStyle = this._color('var(--jp-border-color0)');
    context.lineWidth = this._scale >= LEGIBLE ? 1.5 : 1;
    context.beginPath();
    for (let r = firstRow; r < tree.rows.length; r++) {
      const first = tree.rows[r][0];
      const parent = tree.before[first];
      if (parent < 0 || tree.column[first] < from || tree.column[parent] > to) {
        continue;
      }
      const [x, y] = this._at(first);
      const [px, py] = this._at(parent);
      if (py > this._height) {
        continue;
      }
      const curve = RADIUS * this._scale;
      context.moveTo(px, py + curve);
      context.lineTo(px, y - 2 * curve);
      context.quadraticCurveTo(px, y, px + 2 * curve, y);
      context.lineTo(x - curve, y);
    }
    context.stroke();
  }

  private _choose(place: number): void {
    if (place >= 0) {
      this.select(place);
      this._options.onCall(place);
    }
  }

  private _hit(x: number, y: number): number {
    const tree = this._tree;
    if (!tree || tree.rows.length === 0) {
      return -1;
    }
    const row = Math.round(((y + this._y) / this._scale - MARGIN) / ROW);
    const found = nearest(tree, row, Math.round(((x + this._x) / this._scale - MARGIN) / COLUMN));
    if (found < 0) {
      return -1;
    }
    const [cx, cy] = this._at(found);
    return Math.hypot(cx - x, cy - y) <= Math.max(8, 14 * this._scale) ? found : -1;
  }

  private _onDown = (event: PointerEvent): void => {
    if (event.button === 0) {
      this._drag = { x: event.offsetX + this._x, y: event.offsetY + this._y, moved: false };
      this.node.setPointerCapture?.(event.pointerId);
    }
  };

  private _onMove = (event: PointerEvent): void => {
    if (this._drag) {
      const [x, y] = [this._drag.x - event.offsetX, this._drag.y - event.offsetY];
      this._drag.moved ||= Math.hypot(x - this._x, y - this._y) > 3;
      if (this._drag.moved) {
        this._move(x, y);
      }
    } else {
      this.node.style.cursor = this._hit(event.offsetX, event.offsetY) >= 0 ? 'pointer' : 'grab';
    }
  };

  private _onUp = (event: PointerEvent): void => {
    if (this._drag && !this._drag.moved) {
      this._choose(this._hit(event.offsetX, event.offsetY));
    }
    this._drag = null;
  };

  private _onKey = (event: KeyboardEvent): void => {
    if (!this._tree || event.altKey || event.metaKey || event.ctrlKey) {
      return;
    }
    if (event.key === '+' || event.key === '-') {
      this.zoom(event.key === '+' ? 1.25 : 0.8);
    } else if (event.key === '0') {
      this.fit();
    } else if (/^(Arrow.+|Home|End)$/.test(event.key)) {
      this._choose(neighbour(this._tree, this._selected, event.key));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  private _onWheel = (event: WheelEvent): void => {
    if (event.ctrlKey) {
      this.zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
      event.preventDefault();
    } else if (this._move(this._x + event.deltaX, this._y + event.deltaY)) {
      event.preventDefault(); // at an edge, the page scrolls on
    }
  };

  private readonly _canvas = document.createElement('canvas');
  private readonly _observer: ResizeObserver | undefined;
  private readonly _colors = new Map<string, string>();
  private _tree: ITree | null = null;
  private _calls: readonly ITreeCall[] = [];
  private _selected = -1;
  private _scale = 1;
  private _x = 0;
  private _y = 0;
  private _width = 0;
  private _height = 0;
  private _drag: { x: number; y: number; moved: boolean } | null = null;
  private _frame = 0;
}

/** How high a picture is worth being, in pixels. */
export function treeHeight(rows: number): number {
  return Math.min(340, Math.max(60, (rows - 1) * ROW + 2 * MARGIN));
}
