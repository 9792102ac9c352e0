/** The timeline of the rollouts that the grid shows, in the grid's order. */

import { useEffect, useRef, useState } from 'react';

import { decodeTimeline } from '../decodeAnswers';
import { TimelineCanvas } from './timelineCanvas';
import { messageOf } from './useAnswer';
import { useView } from './view';

/** Milliseconds between two questions for the calls of rollouts that go on. */
const ASK_MS = 1000;

export interface ITimelineViewProps {
  readonly active: boolean;
  /** Places in the table, in order; read at every render. */
  readonly places: () => Uint32Array;
  readonly onOpen: (id: string) => void;
}

export function TimelineView({ active, places, onOpen }: ITimelineViewProps): JSX.Element {
  const { source, trans, theme } = useView();
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<TimelineCanvas | null>(null);
  const [whole, setWhole] = useState(false);
  const [error, setError] = useState('');

  useEffect(() => {
    let askedAt = -Infinity;
    let asking = false;
    const made = new TimelineCanvas({
      label: trans.__('Timeline of the rollouts: arrows move, Enter opens; the table has the same in text'),
      translate: (word, ...values) => trans.__(word, ...values),
      onOpen,
      onMissing: ids => {
        if (asking || performance.now() - askedAt < ASK_MS) {
          return;
        }
        asking = true;
        askedAt = performance.now();
        source
          .ask('timeline', { run: source.model.run?.id ?? '', rollouts: [...ids] })
          .then(
            answer => canvas.current?.add({ ids, ...decodeTimeline(answer.result, answer.buffers) }),
            (reason: unknown) => setError(messageOf(reason))
          )
          .finally(() => {
            asking = false;
            // What came into sight meanwhile.
            setTimeout(() => canvas.current?.paint(), ASK_MS);
          });
      }
    });
    canvas.current = made;
    host.current?.append(made.node);
    const reset = (_: unknown, change: { reset: boolean }): void => {
      if (change.reset) {
        made.forget();
      }
    };
    source.model.changed.connect(reset);
    return () => {
      source.model.changed.disconnect(reset);
      canvas.current = null;
      made.dispose();
    };
  }, [source, trans, onOpen]);

  useEffect(() => {
    // After every render: the model changes in place.
    if (active && canvas.current) {
      canvas.current.whole = whole;
      canvas.current.show(source.model.rows, places(), source.model.kernelNow);
    }
  });
  useEffect(() => canvas.current?.paint(), [theme]);

  const key: readonly [string, string][] = [
    ['model', trans.__('model')],
    ['tools', trans.__('agent and tools')],
    ['held', trans.__('held')],
    ['update', trans.__('learner updates')],
    ['pause', trans.__('calls paused')]
  ];
  return (
    <div className="ll-timeline-view">
      <p className="ll-timeline-key">
        {key.map(([name, label]) => (
          <span key={name}>
            <i className={`ll-swatch-box ll-time-${name}`} aria-hidden="true" /> {label}
          </span>
        ))}
        <button type="button" className="ll-link" aria-pressed={whole} onClick={() => setWhole(!whole)}>
          {whole ? trans.__('Time of the rollouts in sight') : trans.__('Time of the whole run')}
        </button>
        {error && <span role="alert">{error}</span>}
      </p>
      <div className="ll-timeline-host" ref={host} />
    </div>
  );
}
