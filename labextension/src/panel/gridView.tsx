/** The rollout grid with its filters. */

import { useCallback, useEffect, useRef, useState } from 'react';

import { integer } from '../format';
import { GROUP_KEYS, GroupKey } from '../grouping';
import type { IFocus } from '../order';
import { ROLLOUT_STATES } from '../wire';
import { Choice } from './choice';
import { CompareView } from './compareView';
import { RolloutGrid } from './grid';
import { TimelineView } from './timelineView';
import type { IRunSource } from '../tokens';
import { useView } from './view';

/** How the rollouts are shown. */
export type Shape = 'table' | 'timeline' | 'compare';

export interface IGridViewProps {
  readonly active: boolean;
  readonly onOpen: (id: string, from?: IRunSource) => void;
  /** Rollouts that were picked elsewhere on the page. */
  readonly focus: IFocus | null;
  readonly onFocus: (focus: IFocus | null) => void;
  readonly shape: Shape;
  readonly onShape: (shape: Shape) => void;
}

export function GridView({ active, onOpen, focus, onFocus, shape, onShape }: IGridViewProps): JSX.Element {
  const { source, trans } = useView();
  const host = useRef<HTMLDivElement>(null);
  const grid = useRef<RolloutGrid | null>(null);
  const [text, setText] = useState('');
  const [states, setStates] = useState<ReadonlySet<string>>(new Set());
  const [allColumns, setAllColumns] = useState(false);
  const [by, setBy] = useState<GroupKey | null>(null);
  const [folded, setFolded] = useState(false);
  const [layout, setLayout] = useState({ shown: 0, hidden: 0 });
  const { model, selection } = source;
  const places = useCallback(() => grid.current?.index ?? new Uint32Array(0), []);

  useEffect(() => {
    const made = new RolloutGrid({
      label: trans.__('Rollouts'),
      translate: (word, ...values) => trans.__(word, ...values),
      onOpen,
      onLayout: (shown, hidden) =>
        setLayout(old => (old.shown === shown && old.hidden === hidden ? old : { shown, hidden }))
    });
    grid.current = made;
    host.current?.append(made.node);
    return () => {
      grid.current = null;
      made.dispose();
    };
  }, [trans, onOpen]);

  useEffect(() => grid.current?.setFilter({ text, states, focus }), [text, states, focus, onOpen]);
  useEffect(() => grid.current?.setAllColumns(allColumns), [allColumns, onOpen]);
  useEffect(() => grid.current?.setGrouping(by), [by, onOpen]);
  useEffect(() => grid.current?.foldAll(folded), [folded, by, onOpen]);
  useEffect(() => {
    // After every render: the model changes in place, and an unchanged grid is cheap to update.
    if (active) {
      grid.current?.update(model.rows, model.kernelNow, selection.current.rollout);
    }
  });

  const toggle = (state: string): void => {
    const next = new Set(states);
    if (!next.delete(state)) {
      next.add(state);
    }
    setStates(next);
  };

  const shapes: readonly [Shape, string][] = [
    ['table', trans.__('Table')],
    ['timeline', trans.__('Timeline')],
    ['compare', trans.__('Compare')]
  ];
  const filtered = layout.shown !== model.rows.count;
  return (
    <section className="ll-rollouts" aria-label={trans.__('Rollouts')}>
      <div className="ll-toolbar">
        <div className="ll-columns-switch ll-shape" role="group" aria-label={trans.__('Show rollouts as')}>
          {shapes.map(([name, label]) => (
            <button key={name} type="button" aria-pressed={name === shape} onClick={() => onShape(name)}>
              {label}
            </button>
          ))}
        </div>
        {shape !== 'compare' && (
          <>
            <input
              type="search"
              className="ll-search"
              placeholder={trans.__('Filter by task, id, group, outcome')}
              aria-label={trans.__('Filter rollouts by text')}
              value={text}
              onChange={event => setText(event.target.value)}
            />
            {focus && (
              <button
                type="button"
                className="ll-focus"
                data-testid="ll-focus"
                title={trans.__('Show all rollouts again')}
                onClick={() => onFocus(null)}
              >
                {focus.label} <span aria-hidden="true">×</span>
              </button>
            )}
            <div className="ll-chips" role="group" aria-label={trans.__('Filter rollouts by state')}>
              {ROLLOUT_STATES.map(state => (
                <button
                  key={state}
                  type="button"
                  className={`ll-chip ll-tone-${state}`}
                  aria-pressed={states.has(state)}
                  onClick={() => toggle(state)}
                >
                  <i className="ll-dot" aria-hidden="true" />
                  {trans.__(state)}
                </button>
              ))}
            </div>
            {shape === 'table' && (
              <span className="ll-group-by">
                <span>
                  <span aria-hidden="true">{trans.__('Group by')}</span>{' '}
                  <Choice<GroupKey | null>
                    label={trans.__('Group by')}
                    options={[[null, trans.__('nothing')], ...GROUP_KEYS.map(key => [key, trans.__(key)] as const)]}
                    value={by}
                    onChange={key => {
                      setBy(key);
                      setFolded(false);
                    }}
                  />
                </span>
                {by !== null && (
                  <button type="button" className="ll-link" aria-pressed={folded} onClick={() => setFolded(!folded)}>
                    {folded ? trans.__('Unfold all') : trans.__('Fold all')}
                  </button>
                )}
              </span>
            )}
            <span className="ll-shown">
              <span aria-live="polite">
                {filtered
                  ? trans.__('%1 of %2', integer(layout.shown), integer(model.rows.count))
                  : trans.__('%1 rollouts', integer(model.rows.count))}
              </span>
              {layout.hidden > 0 && (
                <button
                  type="button"
                  className="ll-link ll-columns"
                  aria-pressed={allColumns}
                  onClick={() => setAllColumns(!allColumns)}
                >
                  {allColumns ? trans.__('Fit columns') : trans._n('%1 more column', '%1 more columns', layout.hidden)}
                </button>
              )}
            </span>
          </>
        )}
      </div>
      <div className="ll-grid-host" ref={host} hidden={shape !== 'table'} />
      {shape === 'timeline' && <TimelineView active={active} places={places} onOpen={onOpen} />}
      {shape === 'compare' && <CompareView onOpen={onOpen} />}
      {model.rows.count === 0 && (
        <p className="ll-grid-empty">{trans.__('No rollout yet. They appear here the moment they are queued.')}</p>
      )}
      {shape !== 'compare' && model.rows.count > 0 && layout.shown === 0 && (
        <p className="ll-grid-empty">{trans.__('No rollout matches the filter.')}</p>
      )}
    </section>
  );
}
