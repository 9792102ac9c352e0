/** Colours of the theme for canvas, which knows neither CSS variables nor mixtures. */

/** Resolve `var(--name)`; any other colour is returned as it is. */
export function themeColor(node: Element, color: string, fallback = '#888'): string {
  const name = /var\((--[\w-]+)\)/.exec(color)?.[1];
  return name ? getComputedStyle(node).getPropertyValue(name).trim() || fallback : color;
}

export function themeFont(node: Element, pixels: number, family = 'var(--jp-ui-font-family)'): string {
  return `${pixels}px ${themeColor(node, family, 'sans-serif')}`;
}

/** A canvas of a size in CSS pixels, sharp on every screen; `null` where there is no canvas (tests). */
export function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}
