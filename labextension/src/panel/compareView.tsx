/** Two steps beside each other: their numbers, and what became of the same tasks. */

import { useState } from 'react';

import { compareMetrics, compareTasks, ITaskSide } from '../compare';
import { fixed, reading, shortId, words } from '../format';
import { visibleLine } from '../text';
import { useView } from './view';

interface IStepSelectProps {
  readonly label: string;
  readonly steps: readonly number[];
  readonly value: number;
  readonly onChange: (step: number) => void;
}

function StepSelect({ label, steps, value, onChange }: IStepSelectProps): JSX.Element {
  return (
    <label>
      {label}{' '}
      <select value={value} onChange={event => onChange(Number(event.target.value))}>
        {steps.map(step => (
          <option key={step} value={step}>
            {step}
          </option>
        ))}
      </select>
    </label>
  );
}

function Side({ side, onOpen }: { side: ITaskSide | null; onOpen: (id: string) => void }): JSX.Element {
  const { trans } = useView();
  if (!side) {
    return <td className="ll-dim">{trans.__('not in it')}</td>;
  }
  return (
    <td>
      <b>{Number.isNaN(side.reward) ? trans.__('no reward') : fixed(side.reward, 2)}</b>{' '}
      {side.rollouts.map(id => (
        <button key={id} type="button" className="ll-link" title={visibleLine(id)} onClick={() => onOpen(id)}>
          {shortId(id)}
        </button>
      ))}
    </td>
  );
}

export interface ICompareViewProps {
  readonly onOpen: (id: string) => void;
}

export function CompareView({ onOpen }: ICompareViewProps): JSX.Element {
  const { source, trans } = useView();
  const { model } = source;
  const steps = model.steps.map(step => step.index);
  const [picked, setPicked] = useState<{ a?: number; b?: number }>({});
  if (steps.length < 2) {
    return <p className="ll-grid-empty">{trans.__('Two steps are needed to compare them.')}</p>;
  }
  const a = picked.a ?? steps[0];
  const b = picked.b ?? steps[steps.length - 1];
  return (
    <div className="ll-compare" data-testid="ll-compare" tabIndex={0} role="region" aria-label={trans.__('Compare')}>
      <p className="ll-compare-pick">
        <StepSelect
          label={trans.__('Step')}
          steps={steps}
          value={a}
          onChange={step => setPicked({ ...picked, a: step })}
        />
        <StepSelect
          label={trans.__('with step')}
          steps={steps}
          value={b}
          onChange={step => setPicked({ ...picked, b: step })}
        />
      </p>
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('Number')}</th>
            <th scope="col">{trans.__('step %1', a)}</th>
            <th scope="col">{trans.__('step %1', b)}</th>
            <th scope="col">{trans.__('difference')}</th>
          </tr>
        </thead>
        <tbody>
          {compareMetrics(model, a, b).map(pair => (
            <tr key={pair.name}>
              <th scope="row">{words(pair.name)}</th>
              <td className="ll-num">{reading(pair.a)}</td>
              <td className="ll-num">{reading(pair.b)}</td>
              <td className="ll-num">{pair.a === null || pair.b === null ? '' : reading(pair.b - pair.a)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('Task')}</th>
            <th scope="col">{trans.__('mean reward in step %1', a)}</th>
            <th scope="col">{trans.__('mean reward in step %1', b)}</th>
          </tr>
        </thead>
        <tbody>
          {compareTasks(model, a, b).map(pair => (
            <tr key={pair.task}>
              <th scope="row">{visibleLine(pair.task, 90)}</th>
              <Side side={pair.a} onOpen={onOpen} />
              <Side side={pair.b} onOpen={onOpen} />
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
