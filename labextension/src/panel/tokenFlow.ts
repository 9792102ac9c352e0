/**
 * A sample's tokens as running text on canvas, under a strip of the whole sample.
 *
 * Only the lines in sight are drawn. Plain DOM, like the grid: React would redraw
 * what did not change.
 */

import { IFlow, layFlow, lineOf, tokenAt, tokenLabel } from '../strip/flow';
import { SampleTokens } from '../strip/sampleTokens';
import { IShade, Mode, shader } from '../strip/shades';
import { HuePainter } from './hues';
import { IPin, Overview } from './overview';
import { prepare, themeColor, themeFont } from './paint';

const FONT_SIZES = [4, 6, 9, 12, 15] as const;
/** Below this size letters say nothing; tokens are drawn as bars. */
const LEGIBLE = 8;

export interface ITokenFlowOptions {
  readonly label: string;
  readonly onToken: (token: number) => void;
  readonly onPin: (place: number) => void;
  /** The name of a call on the strip, e.g. its number. */
  readonly callLabel: (callId: string) => string;
}

export class TokenFlow {
  constructor(private readonly _options: ITokenFlowOptions) {
    this.node.className = 'll-flow';
    this._overview = new Overview(this._hues, {
      label: _options.label,
      callLabel: _options.callLabel,
      onPin: _options.onPin,
      onGo: token => this._go(token)
    });
    this._scroller.className = 'll-flow-scroller';
    this._scroller.tabIndex = 0;
    this._scroller.dataset.testid = 'll-flow';
    this._scroller.setAttribute('role', 'application');
    this._scroller.setAttribute('aria-label', _options.label);
    this._canvas.className = 'll-flow-canvas';
    this._spacer.className = 'll-flow-spacer';
    this._scroller.append(this._canvas, this._spacer);
    this.node.append(this._overview.node, this._scroller);
    this._scroller.addEventListener('scroll', this._onScroll, { passive: true });
    this._scroller.addEventListener('keydown', this._onKey);
    this._scroller.addEventListener('wheel', this._onWheel, { passive: false });
    this._canvas.addEventListener('click', this._onClick);
    if (typeof ResizeObserver !== 'undefined') {
      this._observer = new ResizeObserver(() => this._resize());
      this._observer.observe(this._scroller);
    }
  }

  readonly node = document.createElement('div');

  /** Show a sample as far as it has arrived. */
  show(tokens: SampleTokens, mode: Mode, advantage: number | null, pins: readonly IPin[]): void {
    const another = tokens !== this._tokens;
    this._tokens = tokens;
    this._mode = mode;
    this._advantage = advantage;
    this._pins = pins;
    if (another) {
      this._selected = this._awaited = -1;
      this._scroller.scrollTop = 0;
      this._scrollToReply = true;
    }
    this.node.dataset.tokens = String(tokens.loaded);
    this._lay();
  }

  get selected(): number {
    return this._selected;
  }

  /** Select a token and bring it into sight, as soon as it has arrived; -1 selects none. */
  select(token: number): void {
    this._selected = token;
    this._awaited = token >= (this._flow?.x.length ?? 0) ? token : -1;
    this._reveal(token);
    this._paint();
  }

  /** Larger or smaller letters. */
  zoom(by: number): void {
    const size = Math.max(0, Math.min(FONT_SIZES.length - 1, this._size + by));
    if (size === this._size) {
      return;
    }
    const anchor = this._selected >= 0 ? this._selected : (this._flow?.lines[this._firstLine] ?? 0);
    this._size = size;
    this._lay();
    this._reveal(anchor);
    this._paint();
  }

  /** The theme changed. */
  repaint(): void {
    this._hues.forget();
    this._paintOverview();
    this._paint();
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._observer?.disconnect();
    this.node.remove();
  }

  private get _lineHeight(): number {
    const size = FONT_SIZES[this._size];
    return size < LEGIBLE ? size + 3 : size + 9;
  }

  private get _firstLine(): number {
    return Math.floor(this._scroller.scrollTop / this._lineHeight);
  }

  private _resize(): void {
    const { clientWidth, clientHeight } = this._scroller;
    this._height = clientHeight;
    if (clientWidth !== this._width) {
      this._width = clientWidth;
      this._lay();
    } else {
      this._paint();
    }
  }

  private _lay(): void {
    const tokens = this._tokens;
    if (!tokens || this._width === 0) {
      return;
    }
    const size = FONT_SIZES[this._size];
    this._font = themeFont(this.node, size, 'var(--jp-code-font-family)');
    const context = this._canvas.getContext('2d');
    if (context) {
      context.font = this._font;
    }
    const measure = (label: string): number =>
      size < LEGIBLE ? Math.max(3, Math.min(label.length, 8) * size * 0.5) : (context?.measureText(label).width ?? 8);
    const starts = new Set(tokens.segments.map(segment => segment.start));
    this._flow = layFlow(tokens, this._width - 8, measure, size < LEGIBLE ? undefined : starts);
    this._shade = shader(tokens, this._mode, this._advantage);
    // The canvas sticks to the top and takes the height of the window; the spacer stands for the rest.
    const rest = this._flow.lines.length * this._lineHeight + 8 - this._height;
    this._spacer.style.height = `${Math.max(0, rest)}px`;
    if (this._scrollToReply && tokens.segments.length > 0) {
      this._scrollToReply = false;
      this._reveal(tokens.segments[0].start);
    }
    if (this._awaited >= 0 && this._awaited < tokens.loaded) {
      this._reveal(this._awaited);
      this._awaited = -1;
    }
    this._paintOverview();
    this._paint();
  }

  private _paintOverview(): void {
    if (this._tokens && this._shade) {
      this._overview.paint(this._tokens, this._shade, this._pins, this._width);
    }
  }

  private _reveal(token: number): void {
    if (!this._flow || token < 0 || token >= this._flow.x.length) {
      return;
    }
    const top = lineOf(this._flow, token) * this._lineHeight;
    const { scrollTop } = this._scroller;
    if (top < scrollTop || top + this._lineHeight > scrollTop + this._height) {
      this._scroller.scrollTop = Math.max(0, top - this._height / 3);
    }
  }

  /** The lines in sight. */
  private _paint(): void {
    const { _tokens: tokens, _flow: flow } = this;
    const context = prepare(this._canvas, this._width, this._height);
    if (!context || !tokens || !flow) {
      return;
    }
    const height = this._lineHeight;
    const first = this._firstLine;
    const last = Math.min(flow.lines.length, first + Math.ceil(this._height / height) + 1);
    const text = themeColor(this.node, 'var(--jp-ui-font-color1)');
    const dim = themeColor(this.node, 'var(--jp-ui-font-color2)');
    const letters = FONT_SIZES[this._size] >= LEGIBLE;
    context.font = this._font;
    context.textBaseline = 'middle';
    for (let line = first; line < last; line++) {
      const y = line * height - this._scroller.scrollTop + 4;
      const stop = flow.lines[line + 1] ?? flow.x.length;
      for (let i = flow.lines[line]; i < stop; i++) {
        const x = flow.x[i] + 4;
        if (this._shade && this._hues.fill(context, this._shade(i))) {
          context.fillRect(x, y, Math.max(1, flow.width[i] - 1), height - 2);
        }
        context.globalAlpha = 1;
        if (letters) {
          context.fillStyle = tokens.role(i) === 'sampled' || tokens.isMasked(i) ? text : dim;
          context.fillText(tokenLabel(tokens.texts[i], tokens.ids[i]), x + 1, y + (height - 2) / 2);
        }
        if (i === this._selected) {
          context.strokeStyle = text;
          context.lineWidth = 1.5;
          context.strokeRect(x - 0.5, y - 0.5, flow.width[i], height - 1);
        }
      }
    }
    this._paintPins(context, flow, first, last);
    if (last > first) {
      this._overview.frame(flow.lines[first], flow.lines[last] ?? flow.x.length);
    }
  }

  private _paintPins(context: CanvasRenderingContext2D, flow: IFlow, first: number, last: number): void {
    context.fillStyle = this._hues.color('masked');
    for (const pin of this._pins) {
      const token = Math.min(pin.token, flow.x.length - 1);
      const line = token < 0 ? -1 : lineOf(flow, token);
      if (line >= first && line < last) {
        const y = line * this._lineHeight - this._scroller.scrollTop + 4;
        const x = pin.token >= flow.x.length ? flow.x[token] + flow.width[token] : flow.x[token];
        context.fillRect(x + 2, y - 2, 2.5, this._lineHeight + 1);
      }
    }
  }

  /** Bring a token into the middle of the window. */
  private _go(token: number): void {
    if (this._flow && this._flow.x.length > 0) {
      const line = lineOf(this._flow, Math.max(0, Math.min(this._flow.x.length - 1, token)));
      this._scroller.scrollTop = line * this._lineHeight - this._height / 2;
    }
  }

  private _choose(token: number): void {
    const count = this._flow?.x.length ?? 0;
    if (count === 0) {
      return;
    }
    this.select(Math.max(0, Math.min(count - 1, token)));
    this._options.onToken(this._selected);
  }

  private _onClick = (event: MouseEvent): void => {
    if (!this._flow) {
      return;
    }
    const line = Math.floor((event.offsetY + this._scroller.scrollTop - 4) / this._lineHeight);
    const token = tokenAt(this._flow, line, event.offsetX - 4);
    const pin = this._pins.find(item => item.token === token);
    if (token >= 0) {
      this._choose(token);
    }
    if (pin) {
      this._options.onPin(pin.place);
    }
  };

  private _onKey = (event: KeyboardEvent): void => {
    const flow = this._flow;
    if (!flow || event.altKey || event.metaKey) {
      return;
    }
    const at = Math.max(0, this._selected);
    const across = (by: number): number => {
      const line = Math.max(0, Math.min(flow.lines.length - 1, lineOf(flow, at) + by));
      return tokenAt(flow, line, flow.x[at]);
    };
    const targets: Readonly<Record<string, () => number>> = {
      ArrowRight: () => this._selected + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => across(1),
      ArrowUp: () => across(-1),
      PageDown: () => across(Math.floor(this._height / this._lineHeight)),
      PageUp: () => across(-Math.floor(this._height / this._lineHeight)),
      Home: () => 0,
      End: () => flow.x.length - 1
    };
    if (event.key in targets) {
      this._choose(targets[event.key]());
    } else if (event.key === '+' || event.key === '-') {
      this.zoom(event.key === '+' ? 1 : -1);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  private _onWheel = (event: WheelEvent): void => {
    if (event.ctrlKey) {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1 : -1);
    }
  };

  private _onScroll = (): void => {
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      this._paint();
    });
  };

  private readonly _hues = new HuePainter(this.node);
  private readonly _overview: Overview;
  private readonly _scroller = document.createElement('div');
  private readonly _canvas = document.createElement('canvas');
  private readonly _spacer = document.createElement('div');
  private readonly _observer: ResizeObserver | undefined;
  private _tokens: SampleTokens | null = null;
  private _mode: Mode = 'role';
  private _advantage: number | null = null;
  private _pins: readonly IPin[] = [];
  private _flow: IFlow | null = null;
  private _shade: ((token: number) => IShade) | null = null;
  private _size = 3;
  private _font = '';
  private _width = 0;
  private _height = 0;
  private _selected = -1;
  /** A selected token that is to be shown once it is laid out; -1 for none. */
  private _awaited = -1;
  private _scrollToReply = true;
  private _frame = 0;
}
