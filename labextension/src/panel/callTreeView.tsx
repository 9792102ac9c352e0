/** The call tree as a picture, where a rollout is more than one conversation. */

import { useEffect, useMemo, useRef } from 'react';

import { integer, words } from '../format';
import { visibleLine } from '../text';
import { ITree, layTree } from '../tree/layout';
import { drawMark, Mark, MARK_COLORS, markOf, MARKS } from '../tree/marks';
import { treeHeight } from '../tree/window';
import type { ICallDetail } from '../wireRollout';
import { CallTree } from './callTree';
import { prepare, themeColor } from './paint';
import { useView } from './view';

/** Whether a picture says more than the transcript does. */
export function branches(calls: readonly ICallDetail[]): boolean {
  return calls.length > 1 && calls.some(call => call.thread !== calls[0].thread || markOf(call) !== 'main');
}

const MEASURE = 'lightning-lab:tree-layout';

function measured(calls: readonly ICallDetail[]): ITree {
  const began = performance.now();
  const tree = layTree(calls);
  performance.measure?.(MEASURE, { start: began });
  return tree;
}

function MarkKey({ mark }: { mark: Mark }): JSX.Element {
  const { theme } = useView();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const node = canvas.current;
    const context = node && prepare(node, 16, 16);
    if (node && context) {
      context.fillStyle = context.strokeStyle = themeColor(node, MARK_COLORS[mark]);
      drawMark(context, mark, 8, 8, 5);
    }
  }, [mark, theme]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

export function CallTreeView({ calls }: { calls: readonly ICallDetail[] }): JSX.Element {
  const { source, theme, trans } = useView();
  const { call: selected } = source.selection.current;
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<CallTree | null>(null);
  const tree = useMemo(() => measured(calls), [calls]);
  const shown = useMemo(
    () =>
      calls.map((call, place) => ({
        mark: markOf(call),
        label: String(call.ordinal),
        thread: tree.before[place] < 0 && call.thread === 'main' ? '' : visibleLine(call.thread, 16)
      })),
    [calls, tree]
  );
  const choose = useRef<(place: number) => void>(() => undefined);
  choose.current = place =>
    source.selection.set({ ...source.selection.current, call: calls[place].id, token: undefined });
  const place = calls.findIndex(call => call.id === selected);

  useEffect(() => {
    const made = new CallTree({
      label: trans.__('Calls by thread; arrow keys select one, plus and minus zoom, 0 shows all'),
      onCall: chosen => choose.current(chosen)
    });
    view.current = made;
    host.current?.append(made.node);
    return () => {
      view.current = null;
      made.dispose();
    };
  }, [trans]);
  useEffect(() => view.current?.show(tree, shown), [tree, shown]);
  // What is selected by now: keys that follow each other faster than renders must not be undone by an earlier one.
  useEffect(() => {
    const now = source.selection.current.call;
    view.current?.select(calls.findIndex(call => call.id === now));
  }, [place, calls, source]);
  useEffect(() => view.current?.repaint(), [theme]);

  const marks = MARKS.filter(mark => shown.some(call => call.mark === mark));
  const current = calls[place];
  return (
    <section className="ll-tree" aria-label={trans.__('Call tree')}>
      <div className="ll-tree-head">
        <h2>
          {trans.__('Calls')}{' '}
          <span className="ll-dim">
            {trans.__('%1 in %2 threads', integer(calls.length), integer(new Set(calls.map(c => c.thread)).size))}
          </span>
        </h2>
        <p className="ll-tree-key">
          {marks.map(mark => (
            <span key={mark}>
              <MarkKey mark={mark} />
              {words(mark)}
            </span>
          ))}
        </p>
        <span className="ll-zoom">
          <button type="button" aria-label={trans.__('Show all calls')} onClick={() => view.current?.fit()}>
            ⤢
          </button>
          <button type="button" aria-label={trans.__('Smaller picture')} onClick={() => view.current?.zoom(0.8)}>
            −
          </button>
          <button type="button" aria-label={trans.__('Larger picture')} onClick={() => view.current?.zoom(1.25)}>
            +
          </button>
        </span>
      </div>
      <div className="ll-tree-host" ref={host} style={{ height: treeHeight(tree.rows.length) }} />
      <p className="ll-sr" role="status" data-testid="ll-tree-said">
        {current &&
          `${trans.__('call %1', current.ordinal)}, ${words(markOf(current))}, ${visibleLine(current.thread, 40)}`}
      </p>
    </section>
  );
}
