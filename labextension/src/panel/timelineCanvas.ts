/** The timeline on canvas: one line per rollout, its model's work in it, the learner's updates behind all. */

import type { ITimelinePart } from '../decodeAnswers';
import { duration, elapsed, shortId, words } from '../format';
import type { RowTable } from '../rows';
import { visibleLine } from '../text';
import { beginOf, endOf, ISpan, modelTime, otherPauses, spanOf, ticks } from '../timeline';
import { prepare, themeColor, themeFont } from './paint';

const LINE = 16;
const HEAD = 22;
/** Room for the names of the lines, at least. */
const LEFT = 64;

/** Calls of one rollout: arrived, started, finished, over and over. */
export type CallTimes = readonly number[];

export interface ITimelineCalls extends ITimelinePart {
  readonly ids: readonly string[];
}

export interface ITimelineOptions {
  readonly label: string;
  readonly translate: (text: string, ...values: string[]) => string;
  readonly onOpen: (id: string) => void;
  /** These rollouts are in sight and their calls are not known. */
  readonly onMissing: (ids: readonly string[]) => void;
}

export class TimelineCanvas {
  constructor(private readonly _options: ITimelineOptions) {
    this.node.className = 'll-timeline';
    this.node.dataset.testid = 'll-timeline';
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', _options.label);
    this._canvas.className = 'll-timeline-canvas';
    this._canvas.setAttribute('role', 'img');
    this._canvas.setAttribute('aria-label', _options.label);
    this._told.className = 'll-unseen';
    this._told.setAttribute('role', 'status');
    this.node.append(this._canvas, this._spacer, this._told);
    this.node.addEventListener('scroll', this._onScroll, { passive: true });
    this.node.addEventListener('keydown', this._onKey);
    this._canvas.addEventListener('click', this._onClick);
    this._canvas.addEventListener('mousemove', this._onMove);
    if (typeof ResizeObserver !== 'undefined') {
      this._observer = new ResizeObserver(() => this.paint());
      this._observer.observe(this.node);
    }
  }

  readonly node = document.createElement('div');
  /** The whole run, or the time of the rollouts in sight. */
  whole = false;

  show(rows: RowTable, places: Uint32Array, now: number): void {
    this._rows = rows;
    this._places = places;
    this._now = now;
    this.paint();
  }

  /** Calls that were asked for have arrived; a rollout that runs is asked for again. */
  add({ ids, updates, pauses, columns }: ITimelineCalls): void {
    const column = (name: string): ArrayLike<number> => {
      const found = columns.get(name);
      return found?.kind === 'number' ? found.values : [];
    };
    const [rollout, arrived, started, finished] = ['rollout', 'arrived', 'started', 'finished'].map(column);
    const calls = ids.map((): number[] => []);
    for (let i = 0; i < rollout.length; i++) {
      calls[rollout[i]]?.push(arrived[i], started[i], finished[i]);
    }
    ids.forEach((id, i) => this._calls.set(id, calls[i]));
    this._updates = updates;
    this._pauses = otherPauses(pauses, updates);
    this.paint();
  }

  forget(): void {
    this._calls.clear();
    this._updates = [];
    this._pauses = [];
  }

  paint(): void {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    this._colors.clear();
    const rows = this._rows;
    const [width, height] = [this.node.clientWidth, this.node.clientHeight];
    this._spacer.style.height = `${Math.max(0, HEAD + this._places.length * LINE - height)}px`;
    const context = prepare(this._canvas, width, height);
    const first = Math.floor(this.node.scrollTop / LINE);
    const seen = this._places.subarray(first, first + Math.ceil((height - HEAD) / LINE));
    const span = rows && spanOf(rows, this.whole ? this._places : seen, this._now);
    this.node.dataset.lines = String(seen.length);
    if (!rows || !span || width <= 2 * LEFT) {
      return;
    }
    this._askFor(rows, seen);
    if (context) {
      context.font = themeFont(this.node, 10);
      const names = Array.from(seen, row => context.measureText(shortId(rows.text('id', row))).width + 16);
      this._left = Math.min(width / 3, Math.max(LEFT, ...names));
      const scale = (width - this._left - 10) / (span.to - span.from);
      const x = (at: number): number => this._left + (at - span.from) * scale;
      const pauses = this._pauses.map(([from, to]) => [from, Number.isNaN(to) ? this._now : to]);
      this._shade(context, x, pauses, 'var(--jp-ui-font-color2)', 0.22);
      this._shade(
        context,
        x,
        this._updates.map(([, from, to]) => [from, to]),
        'var(--jp-warn-color1)',
        0.14
      );
      this._paintAxis(context, x, span, width);
      const shift = HEAD + first * LINE - this.node.scrollTop;
      if (this._active >= first && this._active < first + seen.length) {
        context.fillStyle = this._color('var(--jp-brand-color1)');
        context.globalAlpha = 0.16;
        context.fillRect(0, shift + (this._active - first) * LINE, width, LINE);
        context.globalAlpha = 1;
      }
      seen.forEach((row, i) => this._paintRow(context, rows, row, shift + i * LINE, x));
    }
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._observer?.disconnect();
    this.node.remove();
  }

  /** Asked for once in each picture: style is dear to read. */
  private _color(name: string): string {
    let color = this._colors.get(name);
    if (color === undefined) {
      color = themeColor(this.node, name);
      this._colors.set(name, color);
    }
    return color;
  }

  private _askFor(rows: RowTable, seen: Uint32Array): void {
    const missing: string[] = [];
    for (const row of seen) {
      const id = rows.text('id', row);
      const runs = rows.word('state', row) === 'running';
      if (id && rows.numbers.calls[row] * 3 !== (this._calls.get(id)?.length ?? 0) && (runs || !this._calls.has(id))) {
        missing.push(id);
      }
    }
    if (missing.length > 0) {
      this._options.onMissing(missing.slice(0, 200));
    }
  }

  private _shade(
    context: CanvasRenderingContext2D,
    x: (at: number) => number,
    spans: readonly (readonly number[])[],
    color: string,
    alpha: number
  ): void {
    const [width, height] = [this.node.clientWidth, this.node.clientHeight];
    context.fillStyle = this._color(color);
    context.globalAlpha = alpha;
    for (const [from, to] of spans) {
      const [left, right] = [Math.max(this._left, x(from)), Math.min(width, x(to))];
      if (right > left) {
        context.fillRect(left, HEAD, right - left, height - HEAD);
      }
    }
    context.globalAlpha = 1;
  }

  private _paintAxis(context: CanvasRenderingContext2D, x: (at: number) => number, span: ISpan, width: number): void {
    context.textBaseline = 'middle';
    for (const seconds of ticks(span, Math.max(2, Math.floor(width / 110)))) {
      const at = x(span.from + seconds);
      context.fillStyle = this._color('var(--jp-border-color2)');
      context.fillRect(at, HEAD - 4, 1, this.node.clientHeight);
      context.fillStyle = this._color('var(--jp-ui-font-color2)');
      const label = `+${seconds > 0 && seconds < 1 ? `${seconds} s` : elapsed(seconds)}`;
      if (at + 3 + context.measureText(label).width <= width) {
        context.fillText(label, at + 3, HEAD / 2);
      }
    }
  }

  private _paintRow(
    context: CanvasRenderingContext2D,
    rows: RowTable,
    row: number,
    y: number,
    x: (at: number) => number
  ): void {
    if (y < HEAD - LINE) {
      return;
    }
    const bar = (from: number, to: number, color: string, alpha: number, inset: number): void => {
      if (to >= from) {
        context.globalAlpha = alpha;
        context.fillStyle = this._color(color);
        context.fillRect(x(from), y + inset, Math.max(1, x(to) - x(from)), LINE - 2 * inset);
      }
    };
    const started = rows.numbers.started_at[row];
    const failed = rows.word('state', row) === 'failed';
    bar(beginOf(rows, row), started, 'var(--jp-border-color1)', 0.5, 7);
    bar(started, endOf(rows, row, this._now), failed ? 'var(--jp-error-color1)' : 'var(--jp-success-color1)', 0.35, 4);
    const calls = this._calls.get(rows.text('id', row)) ?? [];
    for (let i = 0; i < calls.length; i += 3) {
      bar(calls[i], calls[i + 1], 'var(--jp-warn-color1)', 0.8, 4);
      bar(calls[i + 1], calls[i + 2], 'var(--jp-brand-color1)', 0.9, 3);
    }
    context.globalAlpha = 1;
    context.fillStyle = this._color('var(--jp-ui-font-color2)');
    context.fillText(shortId(rows.text('id', row)), 8, y + LINE / 2);
  }

  /** What a line shows, in words. */
  private _describe(line: number): string {
    const rows = this._rows;
    const row = this._places[line];
    if (!rows || row === undefined) {
      return '';
    }
    const id = rows.text('id', row);
    const say = this._options.translate;
    const took = endOf(rows, row, this._now) - rows.numbers.started_at[row];
    const parts = [id, rows.text('task', row).slice(0, 60), words(rows.word('state', row))].map(text =>
      visibleLine(text)
    );
    if (!Number.isNaN(took)) {
      const { model, held } = modelTime(this._calls.get(id) ?? []);
      parts.push(say('%1 in all, model %2, tools %3', duration(took), duration(model), duration(took - model - held)));
      if (held > 0) {
        parts.push(say('held %1', duration(held)));
      }
    }
    return parts.join(' · ');
  }

  private _lineAt(event: MouseEvent): number {
    return event.offsetY > HEAD ? Math.floor((event.offsetY - HEAD + this.node.scrollTop) / LINE) : -1;
  }

  private _open(line: number): void {
    const id = this._rows?.text('id', this._places[line] ?? -1) ?? '';
    if (id) {
      this._options.onOpen(id);
    }
  }

  private _move(to: number): void {
    if (this._places.length === 0) {
      return;
    }
    this._active = Math.max(0, Math.min(this._places.length - 1, to));
    const room = this.node.clientHeight - HEAD - LINE;
    const top = this._active * LINE;
    this.node.scrollTop = Math.max(top - room, Math.min(top, this.node.scrollTop));
    this._told.textContent = this._describe(this._active);
    this.paint();
  }

  private _onKey = (event: KeyboardEvent): void => {
    if (event.target !== this.node || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const page = Math.max(1, Math.floor((this.node.clientHeight - HEAD) / LINE) - 1);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: this._active + 1,
      ArrowUp: this._active - 1,
      PageDown: this._active + page,
      PageUp: this._active - page,
      Home: 0,
      End: this._places.length - 1
    };
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

  private _onClick = (event: MouseEvent): void => this._open(this._lineAt(event));

  private _onMove = (event: MouseEvent): void => {
    const line = this._lineAt(event);
    if (line !== this._hovered) {
      this._hovered = line;
      this._canvas.title = line < 0 ? '' : this._describe(line);
    }
  };

  private _onScroll = (): void => {
    this._frame ||= requestAnimationFrame(() => this.paint());
  };

  private readonly _canvas = document.createElement('canvas');
  private readonly _spacer = document.createElement('div');
  private readonly _observer: ResizeObserver | undefined;
  private readonly _colors = new Map<string, string>();
  private readonly _calls = new Map<string, CallTimes>();
  private readonly _told = document.createElement('span');
  private _updates: readonly (readonly number[])[] = [];
  private _pauses: readonly (readonly number[])[] = [];
  private _left = LEFT;
  private _active = -1;
  private _hovered = -1;
  private _rows: RowTable | null = null;
  private _places: Uint32Array = new Uint32Array(0);
  private _now = 0;
  private _frame = 0;
}
