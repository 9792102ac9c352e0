import { compareMetrics, compareTasks } from '../src/compare';
import { App } from '../src/panel/app';
import { frame, HOSTILE } from './frames';
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

it('numbers of two steps stand side by side, those that neither has are left out', () => {
  expect(compareMetrics(source().model, 0, 1)).toEqual([
    { name: 'reward', a: 0.5, b: 1 },
    { name: 'entropy', a: 1.2, b: null },
    { name: 'approx_kl', a: null, b: 0.01 }
  ]);
});

it('the same task is compared by its mean reward; tasks of one step come last', () => {
  const [add, ...others] = compareTasks(source().model, 0, 1);
  expect(add).toEqual({
    task: 'add',
    a: { rollouts: ['r-0', 'r-1'], reward: 0.5 },
    b: { rollouts: ['r-3'], reward: 1 }
  });
  expect(others.map(pair => pair.a === null || pair.b === null)).toEqual([true, true]);
});

it('two steps are picked, and a rollout is one click away', async () => {
  const made = source();
  const view = await renderView(made, <App />);
  await view.after(() => view.button('Compare').click());
  expect(view.text('ll-compare')).toMatch(/reward0\.5001\.0000\.500.*entropy.*add0\.50/s);
  expectTextOnly(view.node);
  await view.after(() => view.button('r-3').click());
  expect(made.selection.current.rollout).toBe('r-3');
  view.unmount();
});

it('one step is not compared', async () => {
  const made = new TestSource();
  made.model.apply(frame({ rows: ROWS, steps: [STEPS[0]] }));
  const view = await renderView(made, <App />);
  await view.after(() => view.button('Compare').click());
  expect(view.node.textContent).toMatch(/Two steps are needed/);
  view.unmount();
});
