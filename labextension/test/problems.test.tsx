import type { IFocus } from '../src/order';
import { NEWEST_FIRST, orderRows } from '../src/order';
import { App } from '../src/panel/app';
import { evidence } from '../src/panel/problems';
import { frame, HOSTILE } from './frames';
import { expectTextOnly, IRendered, renderView, TestSource } from './render';

const ROWS = [
  { row: 0, id: 'r-0', group: 'g-0', step: 0, state: 'succeeded' },
  { row: 1, id: 'r-1', group: 'g-0', step: 1, state: 'failed' },
  { row: 2, id: 'r-2', group: 'g-1', step: 2, state: 'running', started_at: 950 },
  { row: 3, id: 'r-3', group: 'g-1', step: 2, state: 'running', started_at: 940 }
];
const PROBLEM = { severity: 1, count: 1, rollouts: [], groups: [], step: null, shade: '' };
const PROBLEMS = [
  { ...PROBLEM, kind: 'tamper', severity: 3, title: 'Tampering', detail: HOSTILE, rollouts: ['r-1'] },
  { ...PROBLEM, kind: 'no_signal', title: 'Groups without signal', detail: '1 of 2', groups: ['g-1'] },
  { ...PROBLEM, kind: 'spike', title: 'Spike of the KL', detail: 'Step 1: 0.9', step: 1 }
];

describe('the problems of a run', () => {
  let source: TestSource;
  let view: IRendered;

  beforeEach(async () => {
    source = new TestSource();
    source.model.apply(frame({ rows: ROWS, more: { problems: PROBLEMS } }));
    view = await renderView(source, <App />);
  });
  afterEach(() => view.unmount());

  const shown = (): (string | undefined)[] =>
    [...view.node.querySelectorAll<HTMLElement>('.ll-grid-row:not([hidden])')].map(row => row.dataset.rolloutId);

  it('are listed as they are ranked, and as text', () => {
    const kinds = [...view.node.querySelectorAll<HTMLElement>('.ll-problem')].map(node => node.dataset.kind);
    expect(kinds).toEqual(['tamper', 'no_signal', 'spike']);
    expectTextOnly(view.node);
  });

  it.each([
    ['tamper', ['r-1']],
    ['no_signal', ['r-3', 'r-2']],
    ['spike', ['r-1']]
  ])('open their evidence: %s', async (kind, ids) => {
    await view.after(() => view.node.querySelector<HTMLElement>(`[data-kind="${kind}"]`)?.click());
    expect(shown()).toEqual(ids);
    expect(view.text('ll-focus')).toMatch(/×$/);
    await view.after(() => view.byTestId('ll-focus')?.click());
    expect(shown()).toHaveLength(4);
  });

  it('show what drove them first, and pass on what its tokens are coloured by', async () => {
    const spike = { ...PROBLEM, kind: 'spike', title: 'Clip', detail: '', rollouts: ['r-0', 'r-3'], shade: 'clip' };
    source.answers.peak = params => ({ result: { sample: 0, token: 4, call: params.by }, buffers: [] });
    await view.after(() => source.model.apply(frame({ rows: ROWS, more: { problems: [spike] } })));
    await view.after(() => view.node.querySelector<HTMLElement>('.ll-problem')?.click());
    expect(shown()).toEqual(['r-0', 'r-3']);
    await view.after(() => view.node.querySelector<HTMLElement>('[data-rollout-id="r-0"]')?.click());
    expect(view.node.querySelector('[role="radio"][aria-checked="true"]')?.textContent).toBe('Clip');
    expect(source.selection.current).toMatchObject({ rollout: 'r-0', call: 'clip', token: 4 });
  });

  it('are not there when there is none', async () => {
    await view.after(() => source.model.apply(frame({ rows: ROWS })));
    expect(view.byTestId('ll-problems')).toBeNull();
  });

  it('have no evidence without rollouts, groups or a step', () => {
    expect(evidence({ ...PROBLEM, kind: 'x', title: 'x', detail: '' })).toBeNull();
  });
});

it('a focus narrows by every part that it has', () => {
  const source = new TestSource();
  source.model.apply(frame({ rows: ROWS }));
  const ids = (focus: IFocus): string[] =>
    [...orderRows(source.model.rows, { text: '', states: new Set(), focus }, NEWEST_FIRST, 0)].map(row =>
      source.model.rows.text('id', row)
    );
  expect(ids({ label: '', steps: [1, 2] })).toEqual(['r-3', 'r-2', 'r-1']);
  expect(ids({ label: '', steps: [1, 2], groups: new Set(['g-0']) })).toEqual(['r-1']);
});

it('the oldest rollout tells what it waits for and since when, and opens', async () => {
  const source = new TestSource();
  const oldest = { rollout: 'r-3', started_at: 940, waits_for: 'agent', since: 970 };
  source.model.apply(frame({ rows: ROWS, more: { oldest } }));
  const view = await renderView(source, <App />);
  expect(view.text('ll-oldest')).toBe('oldest 1 m 00 s · its own work or tools for 30 s');
  await view.after(() => view.byTestId('ll-oldest')?.click());
  expect(source.selection.current.rollout).toBe('r-3');
  await view.after(() => source.model.apply(frame({ rows: ROWS })));
  expect(view.byTestId('ll-oldest')).toBeNull();
  view.unmount();
});

it('every metric of the steps has a chart, those that were not computed say so', async () => {
  const source = new TestSource();
  source.model.apply(
    frame({
      rows: ROWS,
      steps: [
        { index: 0, approx_kl: 0.1 },
        { index: 1, approx_kl: 0.2 }
      ]
    })
  );
  const view = await renderView(source, <App />);
  expect(view.byTestId('ll-ratio-mean-chart')).toBeNull();
  await view.after(() => view.button('All charts').click());
  expect(view.byTestId('ll-approx-kl-chart')?.dataset.points).toBe('2');
  expect(view.text('ll-ratio-mean-chart')).toMatch(/Not computed/);
  view.unmount();
});
