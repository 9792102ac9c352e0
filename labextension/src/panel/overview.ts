/**
 * The whole sample as one strip: where its calls are, where other calls left it, and which part is in sight.
 *
 * It is drawn once and kept; only the frame around what is in sight moves.
 */

import type { SampleTokens } from '../strip/sampleTokens';
import type { IShade } from '../strip/shades';
import { HuePainter, strength } from './hues';
import { prepare, themeColor, themeFont } from './paint';

const HEIGHT = 30;
const BAND_TOP = 12;
/** Tokens of one column of pixels that are looked at. */
const LOOKED_AT = 32;
/** Pixels around a pin that belong to it. */
const NEAR = 5;

/** Where another call left this sample. */
export interface IPin {
  readonly token: number;
  readonly place: number;
}

export interface IOverviewOptions {
  readonly label: string;
  readonly onPin: (place: number) => void;
  /** Bring a token into sight. */
  readonly onGo: (token: number) => void;
  /** The name of a call on the strip, e.g. its number. */
  readonly callLabel: (callId: string) => string;
}

export class Overview {
  constructor(
    private readonly _hues: HuePainter,
    private readonly _options: IOverviewOptions
  ) {
    this.node.className = 'll-flow-strip';
    this.node.setAttribute('role', 'img');
    this.node.setAttribute('aria-label', _options.label);
    this.node.addEventListener('pointerdown', this._onPointer);
    this.node.addEventListener('pointermove', this._onPointer);
  }

  readonly node = document.createElement('canvas');

  /** A column of pixels shows the strongest token in it. */
  paint(tokens: SampleTokens, shade: (token: number) => IShade, pins: readonly IPin[], width: number): void {
    this._width = width;
    this._total = tokens.total;
    this._pins = pins;
    const context = prepare(this.node, width, HEIGHT);
    if (!context) {
      return;
    }
    const per = tokens.total / Math.max(1, width);
    for (let x = 0; x < width; x++) {
      const start = Math.floor(x * per);
      const stop = Math.min(tokens.loaded, Math.max(start + 1, Math.floor((x + 1) * per)));
      const stride = Math.max(1, Math.floor((stop - start) / LOOKED_AT));
      let best: IShade | null = null;
      for (let i = start; i < stop; i += stride) {
        const found = shade(i);
        if (!best || strength(found) > strength(best)) {
          best = found;
        }
      }
      if (best && this._hues.fill(context, best)) {
        context.fillRect(x, BAND_TOP, 1, HEIGHT - BAND_TOP);
      }
    }
    context.globalAlpha = 1;
    this._paintCalls(context, tokens);
    this._paintPins(context);
    this._kept = context.getImageData?.(0, 0, this.node.width, this.node.height) ?? null;
  }

  /** Frame the tokens that are in sight. */
  frame(from: number, to: number): void {
    const context = this.node.getContext('2d');
    if (!context || !this._kept) {
      return;
    }
    context.putImageData(this._kept, 0, 0);
    const scale = this._width / Math.max(1, this._total);
    context.strokeStyle = themeColor(this.node, 'var(--jp-ui-font-color1)');
    context.lineWidth = 1;
    const width = Math.max(3, (to - from) * scale - 1);
    context.strokeRect(from * scale + 0.5, BAND_TOP - 0.5, width, HEIGHT - BAND_TOP);
  }

  private _paintCalls(context: CanvasRenderingContext2D, tokens: SampleTokens): void {
    context.font = themeFont(this.node, 10);
    context.textBaseline = 'top';
    context.fillStyle = themeColor(this.node, 'var(--jp-ui-font-color2)');
    const scale = this._width / Math.max(1, tokens.total);
    let free = 0;
    for (const segment of tokens.segments) {
      const [x, width] = [segment.start * scale, Math.max(2, (segment.stop - segment.start) * scale)];
      context.fillRect(x, BAND_TOP - 2, width, 1.5);
      const label = this._options.callLabel(segment.callId);
      if (x >= free) {
        const wide = context.measureText(label).width;
        context.fillText(label, Math.min(x, this._width - wide - 1), 0);
        free = x + wide + 6;
      }
    }
  }

  private _paintPins(context: CanvasRenderingContext2D): void {
    const scale = this._width / Math.max(1, this._total);
    context.fillStyle = this._hues.color('masked');
    for (const pin of this._pins) {
      const x = Math.min(this._width - 3, pin.token * scale);
      context.fillRect(x, 2, 2, HEIGHT - 2);
      context.fillRect(x - 3, 2, 8, 5);
    }
  }

  private _onPointer = (event: PointerEvent): void => {
    if (event.buttons !== 1 || this._total === 0) {
      return;
    }
    const per = this._total / Math.max(1, this._width);
    const token = Math.floor(event.offsetX * per);
    const pin = event.type === 'pointerdown' && this._pins.find(item => Math.abs(item.token - token) <= NEAR * per);
    if (pin) {
      this._options.onPin(pin.place);
    }
    this._options.onGo(token);
  };

  private _width = 0;
  private _total = 0;
  private _pins: readonly IPin[] = [];
  private _kept: ImageData | null = null;
}
