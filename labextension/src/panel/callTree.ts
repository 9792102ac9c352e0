/**
 * The call tree on canvas: pan by dragging or with the wheel, zoom with Ctrl and the wheel, move with the arrow keys.
 *
 * Only what is in sight is drawn; far out, calls of one kind are one block.
 */

import { ITree, nearest, neighbour } from '../tree/layout';
import { drawMark, Mark, MARK_COLORS } from '../tree/marks';
import { TreeWindow } from '../tree/window';
import { prepare, themeColor, themeFont } from './paint';

const RADIUS = 7;

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
    this._window.show(tree);
    this._schedule();
  }

  /** -1 selects none. */
  select(place: number): void {
    if (place !== this._selected) {
      this._selected = place;
      this._window.reveal(place);
      this._schedule();
    }
  }

  /** Everything in sight. */
  fit(): void {
    this._window.fit();
    this._schedule();
  }

  zoom(factor: number, x?: number, y?: number): void {
    this._window.zoom(factor, x, y);
    this._schedule();
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
    this._window.resize(this.node.clientWidth, this.node.clientHeight);
    this._schedule();
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
    const context = prepare(this._canvas, this._window.width, this._window.height);
    if (!context || !tree) {
      return;
    }
    const { firstRow, lastRow, firstColumn, lastColumn } = this._window.sight();
    const letters = this._window.legible;
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
    const [left, y] = this._window.at(first);
    const right = this._window.at(last)[0];
    context.strokeStyle = this._color('var(--jp-border-color1)');
    context.lineWidth = letters ? 2 : 1;
    context.beginPath();
    context.moveTo(Math.max(-1, left), y);
    context.lineTo(Math.min(this._window.width + 1, right), y);
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
      context.fillText(thread, right + RADIUS * this._window.scale + 22, y);
    }
  }

  private _paintCall(context: CanvasRenderingContext2D, place: number): void {
    const [x, y] = this._window.at(place);
    const { mark, label } = this._calls[place];
    const r = RADIUS * Math.min(1.2, this._window.scale);
    if (place === this._selected) {
      this._paintSelected(context, x, y, r);
    }
    context.fillStyle = this._color('var(--jp-layout-color1)');
    context.fillRect(x - r, y - r, 2 * r, 2 * r); // the line of the thread ends at the mark
    context.fillStyle = context.strokeStyle = this._color(MARK_COLORS[mark]);
    drawMark(context, mark, x, y, r);
    context.fillStyle = this._color('var(--jp-ui-font-color2)');
    context.fillText(label, x + r + 4, y + 9 * this._window.scale);
  }

  /** Far out: calls of one kind, one after the other, are one block. */
  private _paintRuns(context: CanvasRenderingContext2D, calls: readonly number[], y: number): void {
    const size = Math.max(1.5, 2 * RADIUS * this._window.scale);
    let start = 0;
    for (let i = 1; i <= calls.length; i++) {
      const { mark } = this._calls[calls[start]];
      if (i === calls.length || this._calls[calls[i]].mark !== mark) {
        const left = this._window.at(calls[start])[0] - size / 2;
        const right = this._window.at(calls[i - 1])[0] + size / 2;
        context.fillStyle = this._color(MARK_COLORS[mark]);
        context.fillRect(left, y - size / 2, right - left, size);
        start = i;
      }
    }
    if (this._selected >= 0 && this._tree?.row[this._selected] === this._tree?.row[calls[0]]) {
      this._paintSelected(context, this._window.at(this._selected)[0], y, size / 2);
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
    context.lineWidth = this._window.legible ? 1.5 : 1;
    context.beginPath();
    for (let r = firstRow; r < tree.rows.length; r++) {
      const first = tree.rows[r][0];
      const parent = tree.before[first];
      if (parent < 0 || tree.column[first] < from || tree.column[parent] > to) {
        continue;
      }
      const [x, y] = this._window.at(first);
      const [px, py] = this._window.at(parent);
      if (py > this._window.height) {
        continue;
      }
      const curve = RADIUS * this._window.scale;
      context.moveTo(px, py + curve);
      context.lineTo(px, y - 2 * curve);
      context.quadraticCurveTo(px, y, px + 2 * curve, y);
      context.lineTo(x - curve, y);
    }
    context.stroke();
  }

  /** Look at another part; true when that moved anything. */
  private _move(x: number, y: number): boolean {
    const moved = this._window.move(x, y);
    this._schedule();
    return moved;
  }

  private _choose(place: number): void {
    if (place >= 0) {
      this.select(place);
      this._options.onCall(place);
    }
  }

  private _onDown = (event: PointerEvent): void => {
    if (event.button === 0) {
      this._drag = { x: event.offsetX + this._window.x, y: event.offsetY + this._window.y, moved: false };
      this.node.setPointerCapture?.(event.pointerId);
    }
  };

  private _onMove = (event: PointerEvent): void => {
    if (this._drag) {
      const [x, y] = [this._drag.x - event.offsetX, this._drag.y - event.offsetY];
      this._drag.moved ||= Math.hypot(x - this._window.x, y - this._window.y) > 3;
      if (this._drag.moved) {
        this._move(x, y);
      }
    } else {
      this.node.style.cursor = this._window.hit(event.offsetX, event.offsetY) >= 0 ? 'pointer' : 'grab';
    }
  };

  private _onUp = (event: PointerEvent): void => {
    if (this._drag && !this._drag.moved) {
      this._choose(this._window.hit(event.offsetX, event.offsetY));
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
    } else if (this._move(this._window.x + event.deltaX, this._window.y + event.deltaY)) {
      event.preventDefault(); // at an edge, the page scrolls on
    }
  };

  private readonly _window = new TreeWindow();
  private readonly _canvas = document.createElement('canvas');
  private readonly _observer: ResizeObserver | undefined;
  private readonly _colors = new Map<string, string>();
  private _tree: ITree | null = null;
  private _calls: readonly ITreeCall[] = [];
  private _selected = -1;
  private _drag: { x: number; y: number; moved: boolean } | null = null;
  private _frame = 0;
}
