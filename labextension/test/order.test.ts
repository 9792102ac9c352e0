import { IFilter, IOrder, NEWEST_FIRST, NO_FILTER, orderRows, rowDuration, sharedPrefix } from '../src/order';
import { RowTable } from '../src/rows';
import { frame, IRow } from './frames';

function table(rows: readonly IRow[]): RowTable {
  const made = new RowTable();
  made.apply(frame({ rows }).rollouts);
  return made;
}

function order(rows: RowTable, by: IOrder, filter: IFilter = NO_FILTER, now = 0): number[] {
  return [...orderRows(rows, filter, by, now)];
}

const ROWS = table([
  { row: 0, reward: 0.5, state: 'succeeded', outcome: 'completed', task: 'Add 1', started_at: 10, finished_at: 12 },
  { row: 1, state: 'running', task: 'Add 2', started_at: 10 },
  { row: 2, reward: 1, state: 'failed', outcome: 'agent_error', task: 'Multiply', started_at: 10, finished_at: 19 },
  { row: 3, reward: 0.5, state: 'queuing', task: 'add three' }
]);

describe('orderRows', () => {
  it('begins with the newest', () => {
    expect(order(ROWS, NEWEST_FIRST)).toEqual([3, 2, 1, 0]);
  });

  it('sorts numbers with what has none last, in both directions', () => {
    expect(order(ROWS, { key: 'reward', descending: true })).toEqual([2, 3, 0, 1]);
    expect(order(ROWS, { key: 'reward', descending: false })).toEqual([3, 0, 2, 1]);
  });

  it('sorts words by the alphabet and texts by their characters', () => {
    expect(order(ROWS, { key: 'state', descending: false })).toEqual([2, 3, 1, 0]);
    expect(order(ROWS, { key: 'task', descending: false })).toEqual([0, 1, 2, 3]);
  });

  it('sorts by duration, counting what still runs', () => {
    expect(order(ROWS, { key: 'duration', descending: true }, NO_FILTER, 40)).toEqual([1, 2, 0, 3]);
  });

  it('filters by text in any case and by outcome in words', () => {
    expect(order(ROWS, NEWEST_FIRST, { text: ' ADD ', states: new Set() })).toEqual([3, 1, 0]);
    expect(order(ROWS, NEWEST_FIRST, { text: 'agent error', states: new Set() })).toEqual([2]);
    expect(order(ROWS, NEWEST_FIRST, { text: 'agent_error', states: new Set() })).toEqual([2]);
    expect(order(ROWS, NEWEST_FIRST, { text: '', states: new Set(['running', 'queuing']) })).toEqual([3, 1]);
    expect(order(ROWS, NEWEST_FIRST, { text: 'train', states: new Set() })).toHaveLength(4);
  });

  it('leaves out places that have not arrived', () => {
    expect(order(table([{ row: 5 }, { row: 2 }]), NEWEST_FIRST)).toEqual([5, 2]);
  });
});

describe('rowDuration', () => {
  it('has no value before the start, counts while running and stands still after', () => {
    expect(rowDuration(ROWS, 3, 50)).toBeNaN();
    expect(rowDuration(ROWS, 1, 50)).toBe(40);
    expect(rowDuration(ROWS, 0, 50)).toBe(2);
  });
});

describe('sharedPrefix', () => {
  const ASK = 'State the final answer to the following problem: ';
  const prefix = (...tasks: string[]): string => {
    const rows = table(tasks.map((task, row) => ({ row, task })));
    const places = orderRows(rows, NO_FILTER, NEWEST_FIRST, 0);
    return sharedPrefix(places.length, place => rows.text('task', places[place]));
  };

  it('finds what all tasks begin with, up to a word boundary', () => {
    expect(prefix(`${ASK}120 + 3`, `${ASK}125 - 4`)).toBe(ASK);
  });

  it('is empty for one task, for a short beginning and for different tasks', () => {
    expect(prefix(`${ASK}1`)).toBe('');
    expect(prefix('What is 1?', 'What is 2?')).toBe('');
    expect(prefix(`${ASK}1`, 'Name a colour')).toBe('');
  });
});
