/** The columns of the rollout grid: what each shows, how wide it is, and which give way first when space is short. */

import { compact, duration, fixed, integer, percent, shortId, signed, words } from '../format';
import { rowDuration, SortKey } from '../order';
import type { RowTable } from '../rows';
import { visibleLine } from '../text';

export interface IGridColumn {
  readonly key: SortKey;
  readonly label: string;
  readonly hint: string;
  /** Pixels; the task column takes what is left above its minimum. */
  readonly width: number;
  readonly align: 'left' | 'right';
  /** Lower numbers stay longer when the grid is narrow. */
  readonly priority: number;
  show(rows: RowTable, row: number, context: IShowContext): string;
}

/** What a cell's text depends on beside its row. */
export interface IShowContext {
  /** The kernel's clock. */
  readonly now: number;
  /** What all tasks begin with; left out. */
  readonly prefix: string;
}

function taskText(task: string, prefix: string): string {
  return prefix && task.startsWith(prefix) && task.length > prefix.length
    ? `… ${visibleLine(task.slice(prefix.length), 160)}`
    : visibleLine(task, 160);
}

export const GRID_COLUMNS: readonly IGridColumn[] = [
  {
    key: 'state',
    label: 'State',
    hint: 'Where the rollout is',
    width: 104,
    align: 'left',
    priority: 0,
    show: (rows, row) => words(rows.word('state', row))
  },
  {
    key: 'outcome',
    label: 'Outcome',
    hint: 'Why it ended',
    width: 104,
    align: 'left',
    priority: 7,
    show: (rows, row) => words(rows.word('outcome', row))
  },
  {
    key: 'mode',
    label: 'Mode',
    hint: 'train, eval, or single (started by lab.run)',
    width: 58,
    align: 'left',
    priority: 10,
    show: (rows, row) => words(rows.word('mode', row))
  },
  {
    key: 'step',
    label: 'Step',
    hint: 'The optimiser step that consumed it',
    width: 52,
    align: 'right',
    priority: 6,
    show: (rows, row) => optional(rows.numbers.step[row])
  },
  {
    key: 'version',
    label: 'Ver.',
    hint: 'Policy version that answered it',
    width: 48,
    align: 'right',
    priority: 9,
    show: (rows, row) => optional(rows.numbers.version[row])
  },
  {
    key: 'group',
    label: 'Group',
    hint: 'Rollouts of one task that are compared with each other',
    width: 80,
    align: 'left',
    priority: 8,
    show: (rows, row) => shortId(rows.text('group', row), 10)
  },
  {
    key: 'task',
    label: 'Task',
    hint: 'The beginning of the prompt',
    width: 200,
    align: 'left',
    priority: 1,
    show: (rows, row, { prefix }) => taskText(rows.text('task', row), prefix)
  },
  {
    key: 'harness',
    label: 'Harness',
    hint: 'The agent program',
    width: 112,
    align: 'left',
    priority: 12,
    show: (rows, row) => visibleLine(rows.text('harness', row), 60)
  },
  {
    key: 'reward',
    label: 'Reward',
    hint: 'Given by the grader; empty where there is no valid reward',
    width: 68,
    align: 'right',
    priority: 2,
    show: (rows, row) => optionalFixed(rows.numbers.reward[row], fixed)
  },
  {
    key: 'advantage',
    label: 'Advantage',
    hint: 'Against the other rollouts of its group',
    width: 82,
    align: 'right',
    priority: 4,
    show: (rows, row) => optionalFixed(rows.numbers.advantage[row], signed)
  },
  {
    key: 'weight',
    label: 'Weight',
    hint: "Loss weight: its share of the step's loss",
    width: 66,
    align: 'right',
    priority: 6,
    show: (rows, row) => optionalFixed(rows.numbers.weight[row], percent)
  },
  {
    key: 'calls',
    label: 'Calls',
    hint: 'Model calls',
    width: 52,
    align: 'right',
    priority: 5,
    show: (rows, row) => optional(rows.numbers.calls[row])
  },
  {
    key: 'samples',
    label: 'Samples',
    hint: 'Training rows that its calls became',
    width: 68,
    align: 'right',
    priority: 8,
    show: (rows, row) => optional(rows.numbers.samples[row])
  },
  {
    key: 'breaks',
    label: 'Breaks',
    hint: 'Places where a call could not continue a sample',
    width: 60,
    align: 'right',
    priority: 7,
    show: (rows, row) => optional(rows.numbers.breaks[row])
  },
  {
    key: 'tokens',
    label: 'Tokens',
    hint: 'Sampled tokens',
    width: 62,
    align: 'right',
    priority: 6,
    show: (rows, row) => (Number.isNaN(rows.numbers.tokens[row]) ? '' : compact(rows.numbers.tokens[row]))
  },
  {
    key: 'staleness',
    label: 'Stale',
    hint: 'Publishes between its oldest trained token and its update',
    width: 54,
    align: 'right',
    priority: 11,
    show: (rows, row) => optional(rows.numbers.staleness[row])
  },
  {
    key: 'duration',
    label: 'Time',
    hint: 'From start to end',
    width: 76,
    align: 'right',
    priority: 3,
    show: (rows, row, { now }) => {
      const seconds = rowDuration(rows, row, now);
      return Number.isNaN(seconds) ? '' : duration(seconds);
    }
  }
];

function optional(value: number): string {
  return Number.isNaN(value) ? '' : integer(value);
}

function optionalFixed(value: number, show: (value: number) => string): string {
  return Number.isNaN(value) ? '' : show(value);
}

/** The columns that fit into a width, least important ones left out, in their fixed order. */
export function fitColumns(width: number): readonly IGridColumn[] {
  let shown = [...GRID_COLUMNS];
  const total = (columns: readonly IGridColumn[]): number => columns.reduce((sum, column) => sum + column.width, 0);
  while (shown.length > 1 && total(shown) > width) {
    const last = shown.reduce((worst, column) => (column.priority >= worst.priority ? column : worst));
    shown = shown.filter(column => column !== last);
  }
  return shown;
}
