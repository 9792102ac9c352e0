import { RowTable } from '../src/rows';
import { quantile, stepFacts } from '../src/stepFacts';
import { frame } from './frames';

it('tells by step how advantages lie and why rollouts failed, most frequent reason first', () => {
  const rows = new RowTable();
  rows.apply(
    frame({
      rows: [
        { row: 0, step: 1, advantage: -1, outcome: 'completed' },
        { row: 1, step: 1, advantage: 1, outcome: 'completed' },
        { row: 2, step: 1, outcome: 'grader_error' },
        { row: 3, step: 0, advantage: 0, outcome: 'agent_error' },
        { row: 4, step: 0, outcome: 'grader_error' },
        { row: 5, outcome: 'grader_error' } // no step has consumed it
      ]
    }).rollouts
  );
  const facts = stepFacts(rows);
  expect(facts.steps).toEqual([0, 1]);
  expect(facts.advantage).toEqual([
    [0, -1],
    [0, -0.5],
    [0, 0],
    [0, 0.5],
    [0, 1]
  ]);
  expect(facts.failures).toEqual([
    { outcome: 'grader_error', counts: [1, 1] },
    { outcome: 'agent_error', counts: [1, 0] }
  ]);
});

it('has no quantile of nothing', () => {
  expect(quantile([], 0.5)).toBeNaN();
  expect(quantile([3], 0.75)).toBe(3);
});
