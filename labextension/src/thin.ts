/** Fewer points for a line that has more of them than pixels: in each bucket the first, last, lowest and highest. */

export type Line = readonly (number | null)[];

/** Points per bucket that are kept, at most, for each line. */
const KEPT = 4;

/** The places to draw, ascending; all of them when there are few. */
export function thinned(length: number, lines: readonly Line[], pixels: number): readonly number[] {
  if (length <= pixels * KEPT || pixels < 1) {
    return Array.from({ length }, (_, i) => i);
  }
  const places: number[] = [];
  for (let bucket = 0; bucket < pixels; bucket++) {
    const start = Math.floor((bucket * length) / pixels);
    const stop = Math.floor(((bucket + 1) * length) / pixels);
    const kept = new Set([start, stop - 1]);
    for (const line of lines) {
      let [low, high] = [-1, -1];
      for (let i = start; i < stop; i++) {
        const value = line[i];
        if (value !== null && (low < 0 || value < (line[low] as number))) {
          low = i;
        }
        if (value !== null && (high < 0 || value > (line[high] as number))) {
          high = i;
        }
      }
      if (low >= 0) {
        kept.add(low).add(high);
      }
    }
    places.push(...[...kept].sort((a, b) => a - b));
  }
  return places;
}
