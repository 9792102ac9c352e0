/** The hues of tokens in the colours of the theme. */

import { Hue, IShade } from '../strip/shades';
import { themeColor } from './paint';

const HUES: Readonly<Record<Hue, [string, number]>> = {
  none: ['var(--jp-layout-color1)', 0],
  prompt: ['var(--jp-border-color1)', 0.28],
  observation: ['var(--jp-info-color1)', 0.28],
  sampled: ['var(--jp-success-color1)', 0.42],
  masked: ['var(--jp-warn-color1)', 0.5],
  low: ['var(--jp-error-color1)', 0.65],
  high: ['var(--jp-success-color1)', 0.65],
  scale: ['var(--jp-brand-color1)', 0.7]
};

export class HuePainter {
  constructor(private readonly _node: Element) {}

  color(hue: Hue): string {
    let color = this._colors.get(hue);
    if (color === undefined) {
      color = themeColor(this._node, HUES[hue][0]);
      this._colors.set(hue, color);
    }
    return color;
  }

  /** Fill what is drawn next; false when it would not be seen. */
  fill(context: CanvasRenderingContext2D, shade: IShade): boolean {
    const alpha = strength(shade);
    if (alpha < 0.02) {
      return false;
    }
    context.fillStyle = this.color(shade.hue);
    context.globalAlpha = alpha;
    return true;
  }

  /** The theme changed. */
  forget(): void {
    this._colors.clear();
  }

  private readonly _colors = new Map<Hue, string>();
}

/** How strongly a shade covers what is below it, 0 … 1. */
export function strength({ hue, strength: part }: IShade): number {
  return HUES[hue][1] * part;
}
