import { thinned } from '../src/thin';

it('few points are all drawn', () => {
  expect(thinned(5, [[1, 2, 3, 4, 5]], 100)).toEqual([0, 1, 2, 3, 4]);
});

it('of many points the extremes stay, in order and without repetition', () => {
  const line: (number | null)[] = Array.from({ length: 10_000 }, (_, i) => Math.sin(i / 50));
  line[1234] = 99;
  line[7777] = -99;
  line[42] = null;
  const places = thinned(line.length, [line, line.map(() => null)], 200);
  expect(places.length).toBeLessThanOrEqual(200 * 4);
  expect(places).toEqual(expect.arrayContaining([0, 1234, 7777, 9999]));
  expect([...places].sort((a, b) => a - b)).toEqual(places);
  expect(new Set(places).size).toBe(places.length);
});
