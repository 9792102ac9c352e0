/** Two runs or two steps beside each other. */

import { useState } from 'react';

import type { ISide } from '../compare';
import type { RunModel } from '../model';
import type { IRunSource } from '../tokens';
import { Choice } from './choice';
import { CompareCharts } from './compareCharts';
import { NumbersTable, SettingsTable, TasksTable } from './compareTables';
import { useOtherRun } from './useOtherRun';
import { useView } from './view';

/** What was picked for a side; `undefined` until something was. */
interface IPicked {
  readonly a?: number | null;
  readonly b?: number | null;
}

export interface ICompareViewProps {
  /** @param from - the run it belongs to, where that is not the one on show. */
  readonly onOpen: (id: string, from?: IRunSource) => void;
}

export function CompareView({ onOpen }: ICompareViewProps): JSX.Element {
  const { source, trans } = useView();
  const { choices, other, loading, error, picked, pick } = useOtherRun();
  const [steps, setSteps] = useState<IPicked>({});
  const { model } = source;
  const second = other?.model ?? model;
  const all = model.steps;
  // Two runs are compared as wholes, one run by its first and its last step.
  const a: ISide = { model, step: steps.a !== undefined ? steps.a : other ? null : (all[0]?.index ?? null) };
  const b: ISide = {
    model: second,
    step: steps.b !== undefined ? steps.b : other ? null : (all[all.length - 1]?.index ?? null)
  };
  const stepsOf = (of: RunModel): readonly (readonly [number | null, string])[] => [
    [null, trans.__('whole run')],
    ...of.steps.map(({ index }) => [index, trans.__('step %1', index)] as const)
  ];
  const names = (['A', 'B'] as const).map((side, i) => {
    const { step } = [a, b][i];
    return step === null ? side : trans.__('%1 · step %2', side, step);
  }) as [string, string];

  return (
    <div className="ll-compare" data-testid="ll-compare" tabIndex={0} role="region" aria-label={trans.__('Compare')}>
      <div className="ll-compare-pick">
        <span>
          <i className="ll-swatch-ab ll-mod-a" aria-hidden="true" /> <b>A</b> {trans.__('this run')}
          <Choice
            label={trans.__('Step of A')}
            options={stepsOf(model)}
            value={a.step}
            onChange={step => setSteps({ ...steps, a: step })}
          />
        </span>
        <span>
          <i className="ll-swatch-ab ll-mod-b" aria-hidden="true" /> <b>B</b>
          <Choice
            label={trans.__('Run of B')}
            options={[[-1, trans.__('this run')], ...choices.map(({ label }, i) => [i, label] as const)]}
            value={picked}
            onChange={place => {
              setSteps({});
              pick(place);
            }}
          />
          <Choice
            label={trans.__('Step of B')}
            options={stepsOf(second)}
            value={b.step}
            onChange={step => setSteps({ ...steps, b: step })}
          />
        </span>
        {choices.length === 0 && (
          <span className="ll-dim" data-testid="ll-compare-alone">
            {trans.__(
              'No other run to choose: this lab has made none, and no exported one (.llab) lies in the same folder. Copy one there to compare with it.'
            )}
          </span>
        )}
      </div>
      {loading && <p className="ll-dim">{trans.__('Reading the run…')}</p>}
      {error && (
        <p className="ll-notice ll-mod-warn" role="alert">
          {error}
        </p>
      )}
      {!loading && !error && (
        <>
          {other && <CompareCharts a={model} b={second} />}
          <div className="ll-compare-facts">
            {other && <SettingsTable sources={[source, other]} names={names} />}
            <NumbersTable a={a} b={b} names={names} />
          </div>
          <TasksTable a={a} b={b} names={names} onOpen={[onOpen, id => onOpen(id, other ?? undefined)]} />
        </>
      )}
    </div>
  );
}
