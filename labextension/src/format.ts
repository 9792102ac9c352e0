/** Numbers and times as text: aligned, with units, never `NaN`. */

import { visibleLine } from './text';

const DASH = '–';
const MINUS = '−';

function isNumber(value: number | null | undefined): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

const INTEGER = new Intl.NumberFormat('en-US');
const INTEGER_OR_SHORT = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 4 });

/** `12,345` */
export function integer(value: number | null | undefined): string {
  return isNumber(value) ? INTEGER.format(Math.round(value)) : DASH;
}

/** `987`, `12.3 k`, `4.56 M`: at most four characters of digits. */
export function compact(value: number | null | undefined): string {
  if (!isNumber(value)) {
    return DASH;
  }
  for (const [unit, size] of [
    ['M', 1e6],
    ['k', 1e3]
  ] as const) {
    if (Math.abs(value) >= size * (unit === 'k' ? 10 : 1)) {
      const scaled = value / size;
      return `${scaled.toFixed(Math.abs(scaled) >= 100 ? 0 : 1)} ${unit}`;
    }
  }
  return integer(value);
}

/** `0.713`, with a true minus sign. */
export function fixed(value: number | null | undefined, digits = 3): string {
  if (!isNumber(value)) {
    return DASH;
  }
  const shown = Math.abs(value).toFixed(digits);
  return value < 0 && Number(shown) !== 0 ? MINUS + shown : shown;
}

/**
 * A reading of a chart: `1,184`, `0.462`, `6.4e−14`; never a zero that is none.
 *
 * @param counts - whether it counts things: one of them is `1`, where a share of one is `1.000`.
 */
export function reading(value: number | null | undefined, counts = false): string {
  if (!isNumber(value) || value === 0) {
    return isNumber(value) ? '0' : DASH;
  }
  const size = Math.abs(value);
  if (size < 0.0005) {
    return value.toExponential(1).replace(/-/g, MINUS);
  }
  return size >= 100 || (size >= (counts ? 1 : 2) && Number.isInteger(value))
    ? integer(value).replace('-', MINUS)
    : fixed(value);
}

/** Labels of an axis, as short as they can be without becoming equal. */
export function axisLabels(values: readonly number[]): string[] {
  const largest = Math.max(...values.map(Math.abs));
  if (largest > 0 && largest < 0.001) {
    return values.map(value => (value === 0 ? '0' : value.toExponential(0).replace(/-/g, MINUS)));
  }
  return values.map(value => {
    const text = Math.abs(value) >= 10_000 ? compact(value) : INTEGER_OR_SHORT.format(value);
    return text.replace('-', MINUS);
  });
}

/** `+0.713`, `−0.204`, `0.000`. */
export function signed(value: number | null | undefined, digits = 3): string {
  const shown = fixed(value, digits);
  return isNumber(value) && value > 0 && Number(shown) !== 0 ? `+${shown}` : shown;
}

/** A share as `3.1 %`. */
export function percent(value: number | null | undefined, digits = 1): string {
  return isNumber(value) ? `${fixed(value * 100, digits)} %` : DASH;
}

/** `240 ms`, `3.2 s`, `4 m 05 s`, `2 h 07 m`. */
export function duration(seconds: number | null | undefined): string {
  if (!isNumber(seconds)) {
    return DASH;
  }
  const s = Math.max(0, seconds);
  if (s < 1) {
    return `${Math.round(s * 1000)} ms`;
  }
  if (s < 59.95) {
    return `${s.toFixed(1)} s`;
  }
  if (s < 3599.5) {
    const whole = Math.round(s);
    return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, '0')} s`;
  }
  const minutes = Math.round(s / 60);
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} m`;
}

/** Whole seconds while something goes on, so that the text does not flicker: `7 s`, `4 m 05 s`. */
export function elapsed(seconds: number | null | undefined): string {
  if (!isNumber(seconds)) {
    return DASH;
  }
  const whole = Math.max(0, Math.round(seconds));
  return whole < 60 ? `${whole} s` : duration(whole);
}

/** `812 B`, `1.0 MB`. */
export function byteSize(bytes: number): string {
  if (bytes < 1000) {
    return `${bytes} B`;
  }
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A point in time in the reader's locale, or a dash. */
export function clock(unix: number | null | undefined): string {
  return isNumber(unix) && unix > 0 ? new Date(unix * 1000).toLocaleString() : DASH;
}

/**
 * A name as it is, of a longer, made id its telling end: `…6QP7QF`. Ids may be anybody's: shown as text.
 *
 * @param room - characters of a name that have room.
 */
export function shortId(id: string, room = 20): string {
  return visibleLine(id.length > room ? `…${id.slice(-6)}` : id);
}

/** `agent_error` → `agent error`; what a stored run calls so may be anything, and is shown as text. */
export function words(identifier: string): string {
  return visibleLine(identifier, 40).replace(/_/g, ' ');
}
