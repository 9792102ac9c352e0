import { branches, CallTreeView } from '../src/panel/callTreeView';
import { RolloutPage } from '../src/panel/rolloutPage';
import { depths, Transcript } from '../src/panel/transcript';
import { decodeDetail } from '../src/decodeDetail';
import { layTree, nearest, neighbour } from '../src/tree/layout';
import { markOf } from '../src/tree/marks';
import type { ICallDetail, IRolloutDetail } from '../src/wireRollout';
import { detailJson, frame, HOSTILE } from './frames';
import { expectTextOnly, renderView, TestSource } from './render';

interface IMade {
  readonly thread?: string;
  readonly parent?: string;
  readonly kind?: string;
  readonly asks?: string;
  readonly sends?: string;
  readonly more?: object;
}

function made(calls: readonly IMade[]): readonly ICallDetail[] {
  const [base] = detailJson().calls as object[];
  const json = calls.map(({ thread = 'main', parent = null, kind = 'main', asks = '', sends = '', more }, i) => ({
    ...base,
    id: `c${i}`,
    ordinal: i,
    thread,
    parent_id: parent,
    kind,
    messages: [{ role: 'user', content: asks }],
    reply: { role: 'assistant', tool_calls: sends ? [{ id: `t${i}`, name: 'task', arguments: sends }] : [] },
    ...more
  }));
  return decodeDetail(detailJson({ detail: { calls: json } })).calls;
}

const ERRAND = 'Read calc.py and say what it does.';
/** A title, a main thread whose call 1 sends a helper that works beside call 3, and a compaction. */
const CALLS = made([
  { thread: 'side', kind: 'side' },
  { sends: JSON.stringify({ prompt: ERRAND }) },
  { parent: 'c1', sends: '{"command": "ls"}' },
  { thread: 'helper', kind: 'sub_agent', asks: `<task>${ERRAND}</task>` },
  { thread: 'helper', kind: 'sub_agent', parent: 'c3' },
  { parent: 'c2', kind: 'compaction' },
  {},
  { thread: 'second', kind: 'sub_agent', asks: 'unknown' }
]);

describe('the call tree', () => {
  it('has a row for every thread and puts a helper under the call that sent it', () => {
    const tree = layTree(CALLS);
    expect([...tree.before]).toEqual([-1, -1, 1, 1, 3, 2, 5, 6]);
    expect([...tree.column]).toEqual([0, 0, 1, 1, 2, 2, 3, 4]);
    expect(tree.rows).toEqual([[0], [1, 2, 5, 6], [7], [3, 4]]);
    expect(tree.columns).toBe(5);
  });

  it('tells kinds apart, and failures from them', () => {
    const marks = made([{}, { kind: 'retry' }, { more: { delivered: false } }, { more: { error: 'x' } }]).map(markOf);
    expect(marks).toEqual(['main', 'retry', 'undelivered', 'error']);
  });

  it('is worth a picture only where calls branch', () => {
    expect(branches(made([{}, { parent: 'c0' }]))).toBe(false);
    expect(branches(CALLS)).toBe(true);
    expect(branches(made([{}, { kind: 'compaction' }]))).toBe(true);
  });

  it('is walked with the arrow keys', () => {
    const tree = layTree(CALLS);
    const walk = (from: number, ...keys: string[]): number => keys.reduce((at, key) => neighbour(tree, at, key), from);
    expect(walk(-1, 'ArrowRight')).toBe(0);
    expect(walk(1, 'ArrowRight', 'ArrowRight', 'ArrowRight', 'ArrowRight')).toBe(6);
    expect(walk(3, 'ArrowLeft')).toBe(1);
    expect(walk(2, 'ArrowDown', 'ArrowDown')).toBe(4);
    expect(walk(7, 'ArrowUp')).toBe(6);
    expect(walk(5, 'Home')).toBe(1);
    expect(walk(5, 'End')).toBe(6);
    expect(nearest(tree, 1, 9)).toBe(6);
  });

  it('lays out 20,000 calls of a thousand threads, each once', () => {
    const calls = made(
      Array.from({ length: 20_000 }, (_, i) =>
        i % 20 < 10 ? {} : { thread: `t${Math.floor(i / 20)}`, kind: 'sub_agent' }
      )
    );
    const tree = layTree(calls);
    expect(tree.rows).toHaveLength(1001);
    expect(tree.rows.flat().sort((a, b) => a - b)).toEqual(calls.map((_, i) => i));
  });

  it('selects a call by keyboard and says which', async () => {
    const source = new TestSource();
    source.selection.set({ rollout: 'r-1', call: 'c2' });
    const view = await renderView(source, <CallTreeView calls={CALLS} />);
    const canvas = view.byTestId('ll-tree') as HTMLElement;
    expect(canvas.dataset.rows).toBe('4');
    expect(view.text('ll-tree-said')).toBe('call 2, main, main');
    await view.after(() => canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true })));
    expect(source.selection.current).toEqual({ rollout: 'r-1', call: 'c5', token: undefined });
    view.unmount();
  });
});

describe('the transcript', () => {
  const difference = {
    previous: 0,
    gone: 2,
    changed: [
      {
        role: 'assistant',
        parts: [
          ['=', 'a'],
          ['-', '  '],
          ['+', HOSTILE]
        ]
      }
    ],
    tools_gone: ['bash'],
    tools_new: []
  };
  const gateway = {
    sampling: [
      ['temperature', 0.2, 1],
      ['seed', 7, null]
    ],
    extra: ['thinking'],
    kept: 1,
    left: [3]
  };

  it('indents threads below the one that began them', () => {
    expect(depths(CALLS)).toEqual([0, 0, 0, 1, 1, 0, 0, 1]);
  });

  it('says what the harness and the gateway changed, and what was tried, as text', async () => {
    const [first] = detailJson().calls as object[];
    const detail = decodeDetail(
      detailJson({
        detail: { calls: [{ ...first, difference, gateway }], tampering: [{ at: 900, message: `tried ${HOSTILE}` }] }
      })
    );
    const view = await renderView(new TestSource(), <Transcript detail={detail} />);
    expect(view.text('ll-difference')).toContain('left out 2 messages, rewrote 1 message, took away 1 tool');
    expect(view.node.querySelector('del + ins, pre del')?.textContent).toBe('··');
    expect(view.text('ll-gateway')).toContain('temperature 0.2 became 1');
    expect(view.text('ll-gateway')).toContain('seed 7 is the run’s to decide');
    expect(view.text('ll-gateway')).toContain('put 1 reply back as sampled');
    expect(view.text('ll-gateway')).toContain('left the reply of call 3 as rendered');
    expect(view.text('ll-gateway')).toContain('kept 1 field unread');
    expect(view.text('ll-tamper')).toContain('tried <script>');
    expectTextOnly(view.node);
    view.unmount();
  });

  it('shows a hundred calls of many, and those around the one that is selected', async () => {
    const calls = made(Array.from({ length: 950 }, () => ({})));
    const detail = { ...decodeDetail(detailJson()), calls };
    const source = new TestSource();
    const view = await renderView(source, <Transcript detail={detail} />);
    expect(view.node.querySelectorAll('[data-call-id]')).toHaveLength(100);
    await view.after(() => view.button(/later calls \(850\)/).click());
    expect(view.node.querySelector('[data-call-id]')?.getAttribute('data-call-id')).toBe('c100');
    view.unmount();
    source.selection.set({ call: 'c700' });
    const other = await renderView(source, <Transcript detail={detail} />);
    expect(other.node.querySelector('[aria-current]')?.getAttribute('data-call-id')).toBe('c700');
    other.unmount();
  });

  it('opens what goes on at its end and follows it; either end is a click away', async () => {
    const { rollout } = decodeDetail(detailJson({ rollout: { state: 'running' } }));
    const of = (n: number): IRolloutDetail => ({
      ...decodeDetail(detailJson()),
      rollout,
      calls: made(Array.from({ length: n }, () => ({})))
    });
    const source = new TestSource();
    source.answer = async () => of(250);
    source.model.apply(frame({ rows: [{ row: 0, id: 'r-1', state: 'running', calls: 250 }] }));
    const view = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} />);
    const first = (): string | null | undefined =>
      view.node.querySelector('[data-call-id]')?.getAttribute('data-call-id');
    expect(first()).toBe('c150');
    expect(view.text('ll-place')).toMatch(/^Calls 151 to 250 of 250/);
    await view.after(() => view.button('First').click());
    expect(first()).toBe('c0');
    await view.after(() => view.button('Latest').click());
    expect(first()).toBe('c150');
    view.unmount();
  });
});
