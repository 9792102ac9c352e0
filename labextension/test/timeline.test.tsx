import { RunModel } from '../src/model';
import { App } from '../src/panel/app';
import { beginOf, endOf, modelTime, otherPauses, spanOf, ticks } from '../src/timeline';
import { frame } from './frames';
import { renderView, TestSource } from './render';

const ROWS = [
  { row: 0, state: 'succeeded', started_at: 10, finished_at: 30, calls: 2 },
  { row: 1, state: 'running', started_at: 20, calls: 1 },
  { row: 2, state: 'queuing' }
];

it('a span reaches from the first rollout to the last, or to now while one runs', () => {
  const { rows } = new RunModel();
  rows.apply(frame({ rows: ROWS }).rollouts);
  expect(spanOf(rows, [0], 100)).toEqual({ from: 10, to: 30 });
  expect(spanOf(rows, [0, 1, 2], 100)).toEqual({ from: 10, to: 100 });
  expect(spanOf(rows, [2], 100)).toBeNull();
  expect([beginOf(rows, 1), endOf(rows, 1, 100), endOf(rows, 0, 100)]).toEqual([20, 100, 30]);
});

it('the axis has few round times', () => {
  expect(ticks({ from: 0, to: 65 }, 8)).toEqual([0, 10, 20, 30, 40, 50, 60]);
  expect(ticks({ from: 0, to: 1e7 }, 5).length).toBeLessThanOrEqual(6);
});

it('the time of the model and of held calls adds up', () => {
  expect(modelTime([10, 11, 14, 20, 20, 21])).toEqual({ model: 4, held: 1 });
});

it('pauses that an update explains are no pauses of their own', () => {
  const pauses = [
    [1, 2],
    [10, 15],
    [30, NaN]
  ];
  expect(otherPauses(pauses, [[0, 9, 16]])).toEqual([
    [1, 2],
    [30, NaN]
  ]);
});

it('the timeline asks for the calls of the rollouts in sight, once', async () => {
  Object.defineProperty(HTMLElement.prototype, 'clientWidth', { configurable: true, get: () => 600 });
  Object.defineProperty(HTMLElement.prototype, 'clientHeight', { configurable: true, get: () => 300 });
  const source = new TestSource();
  const asked: unknown[] = [];
  source.answers.timeline = params => {
    asked.push(params.rollouts);
    const places = Int32Array.from([0, 1, 1]).buffer;
    const [arrived, started, finished] = [0, 0.5, 1.5].map(
      late => Float64Array.from([21, 12, 20], at => at + late).buffer
    );
    const names = ['arrived', 'started', 'finished'];
    const columns = names.map((name, i) => ({ name, type: 'f64', buffer: i + 1 }));
    return {
      result: {
        rows: 3,
        updates: [[0, 5, 6]],
        pauses: [[1, null]],
        columns: [{ name: 'rollout', type: 'i32', buffer: 0 }, ...columns]
      },
      buffers: [places, arrived, started, finished]
    };
  };
  source.model.apply(frame({ rows: ROWS }));
  const view = await renderView(source, <App />);
  await view.after(() => view.button('Timeline').click());
  expect(view.byTestId('ll-timeline')?.dataset.lines).toBe('3');
  expect(asked).toEqual([['r-1', 'r-0']]);
  const press = (key: string): void =>
    void view.byTestId('ll-timeline')?.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  press('End');
  expect(view.byTestId('ll-timeline')?.textContent).toBe(
    'r-0 · task 0 · succeeded · 20.0 s in all, model 2.0 s, tools 17.0 s · held 1.0 s'
  );
  await view.after(() => press('Enter'));
  expect(source.selection.current.rollout).toBe('r-0');
  await view.after(() => source.selection.set({}));
  await view.after(() => view.button('Table').click());
  expect(view.byTestId('ll-timeline')).toBeNull();
  view.unmount();
  delete (HTMLElement.prototype as { clientWidth?: number }).clientWidth;
  delete (HTMLElement.prototype as { clientHeight?: number }).clientHeight;
});
