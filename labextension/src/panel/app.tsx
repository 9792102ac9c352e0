/** The panel's root: the empty state, the Run page, or a Rollout page over it. */

import { useCallback, useEffect, useRef, useState } from 'react';

import { EmptyState } from './emptyState';
import { useSource } from './hooks';
import { RolloutPage } from './rolloutPage';
import { RunPage } from './runPage';
import type { Shade } from '../strip/shades';
import type { IRunSource } from '../tokens';
import { useView, ViewProvider } from './view';

export function App(): JSX.Element {
  const view = useView();
  const { source, visible } = view;
  useSource(source, visible);
  const { model, selection } = source;
  const { rollout } = selection.current;
  const root = useRef<HTMLDivElement>(null);
  const [guest, setGuest] = useState<{ source: IRunSource; id: string } | null>(null);
  const [shade, setShade] = useState<Shade>();

  const open = useCallback(
    (id: string, from?: IRunSource, by?: Shade) => {
      setShade(by);
      if (from && from !== source) {
        setGuest({ source: from, id });
        return;
      }
      const { rows } = source.model;
      const row = rows.rowOf(id);
      const step = row < 0 ? NaN : rows.numbers.step[row];
      source.selection.set({
        run: source.model.run?.id,
        step: Number.isNaN(step) ? undefined : step,
        group: row < 0 ? undefined : rows.text('group', row),
        rollout: id
      });
    },
    [source]
  );
  const back = useCallback(() => {
    const { run, step } = source.selection.current;
    source.selection.set({ run, step });
    root.current?.querySelector<HTMLElement>('.ll-grid')?.focus({ preventScroll: true });
  }, [source]);

  useEffect(() => {
    // A rollout of another run is not there any more.
    const forget = (_: unknown, change: { reset: boolean }): void => {
      if (change.reset) {
        source.selection.set({});
      }
    };
    source.model.changed.connect(forget);
    return () => void source.model.changed.disconnect(forget);
  }, [source]);

  return (
    <div
      ref={root}
      className="ll-root"
      data-testid="ll-panel"
      data-rows={model.rows.count}
      data-status={source.status}
      data-lab={model.lab}
    >
      {model.lab === '' ? (
        <EmptyState />
      ) : (
        <>
          <RunPage active={visible && rollout === undefined && guest === null} onOpen={open} />
          {guest && (
            <ViewProvider value={{ ...view, source: guest.source }}>
              <RolloutPage id={guest.id} onOpen={id => setGuest({ ...guest, id })} onBack={() => setGuest(null)} />
            </ViewProvider>
          )}
          {rollout !== undefined && <RolloutPage id={rollout} shade={shade} onOpen={open} onBack={back} />}
        </>
      )}
    </div>
  );
}
