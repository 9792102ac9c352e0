import { RolloutGrid } from '../src/panel/grid';
import { fitColumns, GRID_COLUMNS } from '../src/panel/gridColumns';
import { ROW_HEIGHT } from '../src/panel/gridRows';
import { RowTable } from '../src/rows';
import { frame, IRow } from './frames';

function table(rows: readonly IRow[]): RowTable {
  const made = new RowTable();
  made.apply(frame({ rows }).rollouts);
  return made;
}

function many(count: number): IRow[] {
  return Array.from({ length: count }, (_, row) => ({
    row,
    state: row % 3 ? 'succeeded' : 'failed',
    reward: row / count
  }));
}

function setUp(rows: RowTable): {
  grid: RolloutGrid;
  opened: string[];
  shown: () => string[];
  press: (key: string) => void;
} {
  const opened: string[] = [];
  const grid = new RolloutGrid({
    label: 'Rollouts',
    translate: (text, ...values) => text.replace('%1', values[0]),
    onOpen: id => opened.push(id),
    onLayout: () => undefined
  });
  document.body.append(grid.node);
  Object.defineProperty(grid.node, 'clientHeight', { value: 520 });
  Object.defineProperty(grid.node, 'clientWidth', { value: 1280 });
  grid.update(rows, 0, undefined);
  const visibleRows = (): HTMLElement[] =>
    [...grid.node.querySelectorAll<HTMLElement>('.ll-grid-row')].filter(row => !row.hidden);
  return {
    grid,
    opened,
    shown: () =>
      visibleRows()
        .sort((a, b) => Number(a.getAttribute('aria-rowindex')) - Number(b.getAttribute('aria-rowindex')))
        .map(row => row.dataset.rolloutId ?? ''),
    press: key => grid.node.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
  };
}

describe('RolloutGrid', () => {
  it('makes elements for what is in sight only, of 10⁵ rows', () => {
    const { grid, shown } = setUp(table(many(100_000)));
    expect(grid.node.querySelectorAll('.ll-grid-row').length).toBeLessThan(60);
    expect(grid.node.getAttribute('aria-rowcount')).toBe('100001');
    expect(shown()[0]).toBe('r-99999');
    grid.dispose();
  });

  it('has the roles of a grid, with its place in the whole', () => {
    const { grid } = setUp(table(many(3)));
    expect(grid.node.getAttribute('role')).toBe('grid');
    expect(grid.node.querySelectorAll('[role="columnheader"]')).toHaveLength(GRID_COLUMNS.length);
    const row = grid.node.querySelector('[data-rollout-id="r-2"]');
    expect(row?.getAttribute('role')).toBe('row');
    expect(row?.getAttribute('aria-rowindex')).toBe('2');
    expect(row?.querySelectorAll('[role="gridcell"]:not(.ll-group-cell)')).toHaveLength(GRID_COLUMNS.length);
    grid.dispose();
  });

  it('follows the table in place', () => {
    const rows = table(many(2));
    const { grid, shown } = setUp(rows);
    rows.apply(
      frame({
        rows: [
          { row: 2, state: 'running' },
          { row: 0, state: 'cancelled' }
        ]
      }).rollouts
    );
    grid.update(rows, 0, undefined);
    expect(shown()).toEqual(['r-2', 'r-1', 'r-0']);
    expect(grid.node.querySelector<HTMLElement>('[data-rollout-id="r-0"]')?.dataset.state).toBe('cancelled');
    grid.dispose();
  });

  it('sorts by a click on a head: down, up, and back to newest first', () => {
    const { grid, shown } = setUp(table([{ row: 0, reward: 1 }, { row: 1, reward: 0.5 }, { row: 2 }]));
    const click = (): void => grid.node.querySelector<HTMLElement>('[data-key="reward"]')?.click();
    const sort = (): string | null | undefined =>
      grid.node.querySelector('[data-key="reward"]')?.parentElement?.getAttribute('aria-sort');
    click();
    expect([shown(), sort()]).toEqual([['r-0', 'r-1', 'r-2'], 'descending']);
    click();
    expect([shown(), sort()]).toEqual([['r-1', 'r-0', 'r-2'], 'ascending']);
    click();
    expect([shown(), sort()]).toEqual([['r-2', 'r-1', 'r-0'], 'none']);
    grid.dispose();
  });

  it('filters', () => {
    const { grid, shown } = setUp(table(many(6)));
    grid.setFilter({ text: 'task', states: new Set(['failed']) });
    expect(shown()).toEqual(['r-3', 'r-0']);
    expect(grid.node.dataset.shown).toBe('2');
    grid.dispose();
  });

  it('moves by keyboard, keeps its row while others arrive, and opens with Enter', () => {
    const rows = table(many(200));
    const { grid, opened, press } = setUp(rows);
    const active = (): string | undefined =>
      grid.node.querySelector<HTMLElement>(`#${grid.node.getAttribute('aria-activedescendant')}`)?.dataset.rolloutId;
    press('ArrowDown');
    press('ArrowDown');
    expect(active()).toBe('r-198');
    rows.apply(frame({ rows: [{ row: 200 }] }).rollouts);
    grid.update(rows, 0, undefined);
    expect(active()).toBe('r-198');
    press('Enter');
    expect(opened).toEqual(['r-198']);
    press('End');
    expect(active()).toBe('r-0');
    expect(grid.node.scrollTop).toBeGreaterThan(150 * ROW_HEIGHT);
    press('Home');
    expect(active()).toBe('r-200');
    expect(grid.node.scrollTop).toBe(0);
    grid.dispose();
  });

  it('leaves out what all tasks begin with, and keeps it in the tooltip', () => {
    const ask = 'State the final answer to the following problem: ';
    const { grid } = setUp(
      table([
        { row: 0, task: `${ask}1 + 1` },
        { row: 1, task: `${ask}2 + 2` }
      ])
    );
    const cell = grid.node.querySelector<HTMLElement>('[data-rollout-id="r-0"] .ll-col-task');
    expect([cell?.textContent, cell?.title]).toEqual(['… 1 + 1', `${ask}1 + 1`]);
    grid.dispose();
  });

  it('groups rows under headers that fold, by mouse and by keyboard', () => {
    const { grid, shown, press } = setUp(
      table([
        { row: 0, step: 0, reward: 1, state: 'succeeded' },
        { row: 1, step: 0, reward: 0, state: 'failed' },
        { row: 2, step: 1, reward: 1, state: 'succeeded' }
      ])
    );
    const headers = (): string[] =>
      [...grid.node.querySelectorAll<HTMLElement>('[data-testid="ll-grid-group"]')]
        .filter(node => !node.hidden)
        .map(node => node.querySelector('.ll-group-cell')?.textContent ?? '');
    grid.setGrouping('step');
    expect(grid.node.getAttribute('role')).toBe('treegrid');
    expect(headers()).toEqual([
      'step 1  ·  1 rollout  ·  mean reward 1.000',
      'step 0  ·  2 rollouts  ·  mean reward 0.500  ·  1 failed'
    ]);
    expect(shown()).toEqual(['', 'r-2', '', 'r-1', 'r-0']);
    grid.node.querySelector<HTMLElement>('[data-testid="ll-grid-group"] .ll-group-cell')?.click();
    expect(shown()).toEqual(['', '', 'r-1', 'r-0']);
    press('End');
    press('ArrowLeft'); // from a row to its header
    press('ArrowLeft');
    expect(shown()).toEqual(['', '']);
    expect(grid.node.querySelector('[aria-expanded="true"]')).toBeNull();
    press('ArrowRight');
    expect(shown()).toEqual(['', '', 'r-1', 'r-0']);
    expect(grid.index).toHaveLength(3);
    grid.setGrouping(null);
    expect(shown()).toEqual(['r-2', 'r-1', 'r-0']);
    expect(grid.node.querySelector('[aria-level]')).toBeNull();
    grid.dispose();
  });

  it('opens with a click', () => {
    const { grid, opened } = setUp(table(many(3)));
    grid.node.querySelector<HTMLElement>('[data-rollout-id="r-1"] [role="gridcell"]')?.click();
    expect(opened).toEqual(['r-1']);
    grid.dispose();
  });
});

describe('fitColumns', () => {
  it('drops the least important first and keeps the order', () => {
    const keys = (width: number): string[] => fitColumns(width).map(column => column.key);
    expect(keys(Infinity)).toEqual(GRID_COLUMNS.map(column => column.key));
    expect(keys(900)).not.toContain('mode');
    expect(keys(460)).toEqual(['state', 'task', 'reward', 'duration']);
    expect(keys(10)).toEqual(['state']);
  });
});
