/** Tokens laid out as running text: which line, where on it. Pure; 10⁵ tokens take some milliseconds. */

import { visible } from '../text';
import type { SampleTokens } from './sampleTokens';

/** Longer tokens are cut; what they say is shown when they are selected. */
const LONGEST = 40;

const shown = new Map<string, string>();

/** A token's text on one line: spaces and line breaks can be seen, everything invisible has a name. */
export function tokenLabel(text: string, id: number): string {
  if (!text) {
    return id < 0 ? '█' : `#${id}`;
  }
  let label = shown.get(text);
  if (label === undefined) {
    const plain = visible(text).replace(/\n/g, '↵').replace(/\t/g, '⇥');
    label = plain.length > LONGEST ? `${plain.slice(0, LONGEST)}…` : plain;
    if (shown.size > 50_000) {
      shown.clear();
    }
    shown.set(text, label);
  }
  return label;
}

export interface IFlow {
  /** Left edge and width of every token, in pixels. */
  readonly x: Float32Array;
  readonly width: Float32Array;
  /** First token of every line. */
  readonly lines: readonly number[];
}

/**
 * @param measure - width of a label in pixels.
 * @param breaks - tokens that begin a new line whatever the room, e.g. where a call's reply begins.
 */
export function layFlow(
  tokens: SampleTokens,
  room: number,
  measure: (label: string) => number,
  breaks: ReadonlySet<number> = new Set()
): IFlow {
  const x = new Float32Array(tokens.loaded);
  const width = new Float32Array(tokens.loaded);
  const lines: number[] = [];
  const widths = new Map<string, number>();
  let left = Infinity;
  for (let i = 0; i < tokens.loaded; i++) {
    const label = tokenLabel(tokens.texts[i], tokens.ids[i]);
    let w = widths.get(label);
    if (w === undefined) {
      w = Math.min(room, Math.ceil(measure(label)) + 2);
      widths.set(label, w);
    }
    if (left + w > room || breaks.has(i)) {
      lines.push(i);
      left = 0;
    }
    x[i] = left;
    width[i] = w;
    left = tokens.texts[i].endsWith('\n') ? Infinity : left + w;
  }
  return { x, width, lines };
}

/** The line of a token. */
export function lineOf(flow: IFlow, token: number): number {
  let low = 0;
  let high = flow.lines.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (flow.lines[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/** The token at a place of a line, or the last one before it; -1 outside. */
export function tokenAt(flow: IFlow, line: number, x: number): number {
  if (line < 0 || line >= flow.lines.length) {
    return -1;
  }
  const stop = flow.lines[line + 1] ?? flow.x.length;
  for (let i = flow.lines[line]; i < stop; i++) {
    if (x < flow.x[i] + flow.width[i]) {
      return i;
    }
  }
  return stop - 1;
}
