import { groupRows } from '../src/grouping';
import { RowTable } from '../src/rows';
import { frame, IRow } from './frames';

function table(rows: readonly IRow[]): RowTable {
  const made = new RowTable();
  made.apply(frame({ rows }).rollouts);
  return made;
}

const ROWS = table([
  { row: 0, group: 'a', state: 'succeeded', reward: 1 },
  { row: 1, group: 'b', state: 'running' },
  { row: 2, group: 'a', state: 'failed', reward: 0, outcome: 'agent_error' }
]);
const INDEX = Uint32Array.from([2, 1, 0]);

describe('groupRows', () => {
  it('is one list without a key', () => {
    expect([...groupRows(ROWS, INDEX, null, new Set()).lines]).toEqual([2, 1, 0]);
  });

  it('keeps the order of rows and of first rows, and tells what a group has in common', () => {
    const { lines, groups } = groupRows(ROWS, INDEX, 'group', new Set());
    expect([...lines]).toEqual([-1, 2, 0, -2, 1]);
    expect(groups[0]).toMatchObject({ label: 'a', rows: 2, reward: 0.5, failed: 1, running: 0 });
    expect(groups[1]).toMatchObject({ label: 'b', rows: 1, reward: NaN, failed: 0, running: 1 });
  });

  it('leaves out the rows of folded groups, never their header', () => {
    const { lines, groups } = groupRows(ROWS, INDEX, 'group', new Set(['a']));
    expect([...lines]).toEqual([-1, -2, 1]);
    expect(groups.map(group => group.collapsed)).toEqual([true, false]);
  });

  it('names what has no key', () => {
    expect(groupRows(ROWS, INDEX, 'step', new Set()).groups[0].label).toBe('in no step');
    expect(groupRows(ROWS, INDEX, 'outcome', new Set()).groups.map(group => group.label)).toEqual([
      'agent error',
      'not ended'
    ]);
  });
});

describe('RowTable', () => {
  it('takes a repeated block for no change', () => {
    const rows = table([{ row: 0, reward: 1 }]);
    const before = rows.revision;
    rows.apply(frame({ rows: [{ row: 0, reward: 1 }] }).rollouts);
    expect(rows.revision).toBe(before);
    rows.apply(frame({ rows: [{ row: 0, reward: 0 }] }).rollouts);
    expect(rows.revision).toBe(before + 1);
  });
});
