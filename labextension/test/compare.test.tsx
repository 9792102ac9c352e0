import { compareMetrics, compareSettings, compareTasks, overlaid } from '../src/compare';
import type { RunModel } from '../src/model';
import type { IRunFiles } from '../src/otherRun';
import { App } from '../src/panel/app';
import { encodeFrame, frame, HOSTILE } from './frames';
import { expectTextOnly, renderView, TestSource } from './render';

const ROWS = [
  { row: 0, id: 'r-0', task: 'add', step: 0, reward: 0 },
  { row: 1, id: 'r-1', task: 'add', step: 0, reward: 1 },
  { row: 2, id: 'r-2', task: HOSTILE, step: 0 },
  { row: 3, id: 'r-3', task: 'add', step: 1, reward: 1 },
  { row: 4, id: 'r-4', task: 'new', step: 1, reward: 1 }
];
const STEPS = [
  { index: 0, reward: 0.5, entropy: 1.2 },
  { index: 1, reward: 1, approx_kl: 0.01 }
];

function source(): TestSource {
  const made = new TestSource();
  made.model.apply(frame({ rows: ROWS, steps: STEPS }));
  return made;
}

const side = (step: number | null): { model: RunModel; step: number | null } => ({ model: source().model, step });

it('numbers of two steps stand side by side, those that neither has are left out', () => {
  expect(compareMetrics(side(0), side(1))).toEqual([
    { name: 'reward', a: 0.5, b: 1 },
    { name: 'entropy', a: 1.2, b: null },
    { name: 'approx_kl', a: null, b: 0.01 }
  ]);
});

it('the numbers of a whole run are means over the steps that have them', () => {
  expect(compareMetrics(side(null), side(1)).slice(0, 2)).toEqual([
    { name: 'reward', a: 0.75, b: 1 },
    { name: 'entropy', a: 1.2, b: null }
  ]);
});

it('the same task is compared by its mean reward; tasks of one step come last', () => {
  const [add, ...others] = compareTasks(side(0), side(1));
  expect([add.task, add.a?.reward, add.b?.reward]).toEqual(['add', 0.5, 1]);
  expect(add.a?.rollouts.map(({ id, reward }) => [id, reward])).toEqual([
    ['r-0', 0],
    ['r-1', 1]
  ]);
  expect(others.map(pair => pair.a === null || pair.b === null)).toEqual([true, true]);
});

it('settings that are equal are left out, those that one run lacks are not', () => {
  const a = new Map([
    ['n', '8'],
    ['seed', '0'],
    ['old', 'x']
  ]);
  expect(compareSettings(a, new Map(Object.entries({ n: '16', seed: '0' })))).toEqual([
    { name: 'n', a: '8', b: '16' },
    { name: 'old', a: 'x', b: null }
  ]);
});

it('two runs of different length share one axis of steps', () => {
  const longer = new TestSource();
  longer.model.apply(frame({ steps: [...STEPS, { index: 2, reward: 0.9 }] }));
  expect(overlaid('reward', source().model, longer.model)).toEqual({
    x: [0, 1, 2],
    a: [0.5, 1, null],
    b: [0.5, 1, 0.9]
  });
});

it('two steps are picked, and a rollout is one click away', async () => {
  const made = source();
  const view = await renderView(made, <App />);
  await view.after(() => view.button('Compare').click());
  expect(view.text('ll-compare')).toMatch(/reward, mean0\.5001\.0000\.500.*entropy.*add0\.50/s);
  expect(view.text('ll-compare-alone')).toMatch(/this lab has made none, .* \(\.llab\) lies in the same folder/);
  expectTextOnly(view.node);
  await view.after(() => view.node.querySelector<HTMLElement>('[title="r-3"]')?.click());
  expect(made.selection.current.rollout).toBe('r-3');
  view.unmount();
});

describe('another run', () => {
  /** A lab that remembers `run-0`, whose rows come in two parts. */
  function lab(): TestSource {
    const made = source();
    made.answers.runs = () => ({
      result: { runs: [{ id: 'run-1' }, { id: 'run-0', state: 'finished', rollouts: 2 }] },
      buffers: []
    });
    made.answers.settings = ({ run }) => ({
      result: { settings: { lr: run === 'run-0' ? '1e-4' : '3e-5' } },
      buffers: []
    });
    made.answers.run = ({ rows }) => {
      const part = encodeFrame({
        lab: 'run:run-0',
        run: 'run-0',
        rows: [{ row: Number(rows), id: `old-${rows}`, task: 'add', step: 0, reward: 0.25 }],
        steps: rows === 0 ? [{ index: 0, reward: 0.25 }] : []
      });
      return { result: { ...part.data, left: rows === 0 }, buffers: part.buffers };
    };
    return made;
  }

  async function compared(made: TestSource, files: IRunFiles | null = null): ReturnType<typeof renderView> {
    const view = await renderView(made, <App />, true, files);
    await view.after(() => view.button('Compare').click());
    const select = view.node.querySelector<HTMLSelectElement>('[aria-label="Run of B"]')!;
    await view.after(() => {
      select.selectedIndex = 1;
      select.dispatchEvent(new Event('change', { bubbles: true }));
    });
    return view;
  }

  it('of the lab: settings, charts and the same tasks stand side by side, and its rollouts open', async () => {
    const made = lab();
    const view = await compared(made);
    expect(view.text('ll-compare-settings')).toMatch(/lr3e-51e-4/);
    expect(view.byTestId('ll-compare-reward')?.dataset.points).toBe('2');
    expect(view.text('ll-compare-tasks')).toMatch(/add0\.67.*0\.25/s);
    await view.after(() => view.node.querySelector<HTMLElement>('[title="old-1"]')?.click());
    expect(made.asked).toEqual(['old-1']);
    expect(made.selection.current.rollout).toBeUndefined();
    view.unmount();
  });

  it('from a file beside the notebook', async () => {
    const file = new TestSource();
    file.status = 'file';
    file.model.apply(frame({ lab: 'file:run-9', run: 'run-9', rows: ROWS, steps: STEPS }));
    file.answers.settings = () => ({ result: { settings: { lr: '3e-5' } }, buffers: [] });
    const made = lab();
    made.answers.runs = () => ({ result: { runs: [] }, buffers: [] });
    const view = await compared(made, { list: async () => ['old.llab'], open: () => file });
    expect(view.text('ll-compare')).toMatch(/Both runs have the same settings/);
    await view.after(() => view.node.querySelectorAll<HTMLElement>('[title="r-4"]')[1]?.click());
    expect(file.asked).toEqual(['r-4']);
    view.unmount();
    expect(file.isDisposed).toBe(true);
  });

  it('that cannot be read says why', async () => {
    const made = lab();
    made.answers.run = () => {
      throw new Error('There is no run here.');
    };
    const view = await compared(made);
    expect(view.node.querySelector('[role="alert"]')?.textContent).toBe('There is no run here.');
    view.unmount();
  });
});
