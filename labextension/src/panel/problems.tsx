/** What is wrong with the run, worst first; each finding opens its evidence. */

import { integer } from '../format';
import type { IFocus } from '../order';
import { asShade } from '../strip/shades';
import { visibleLine } from '../text';
import type { IProblem } from '../wire';
import { useView } from './view';

/** The rollouts that a finding is about, as the grid shows them. */
export function evidence(problem: IProblem): IFocus | null {
  const label = visibleLine(problem.title, 60);
  const shade = asShade(problem.shade);
  if (problem.rollouts.length > 0) {
    return { label, rollouts: new Set(problem.rollouts), shade };
  }
  if (problem.groups.length > 0) {
    return { label, groups: new Set(problem.groups) };
  }
  return problem.step === null ? null : { label, steps: [problem.step, problem.step], shade };
}

export interface IProblemsProps {
  readonly onFocus: (focus: IFocus) => void;
}

export function Problems({ onFocus }: IProblemsProps): JSX.Element | null {
  const { source, trans } = useView();
  const { problems } = source.model;
  if (problems.length === 0) {
    return null;
  }
  return (
    <section className="ll-problems" aria-label={trans.__('Problems')} data-testid="ll-problems">
      <h2>
        {trans.__('Problems')} <span className="ll-dim">{integer(problems.length)}</span>
      </h2>
      <ul>
        {problems.map(problem => {
          const focus = evidence(problem);
          return (
            <li key={`${problem.kind} ${problem.title}`}>
              <button
                type="button"
                className={`ll-problem ll-mod-${problem.severity >= 3 ? 'bad' : problem.severity === 2 ? 'lost' : 'note'}`}
                data-kind={problem.kind}
                disabled={!focus}
                title={trans.__('Show its rollouts')}
                onClick={() => focus && onFocus(focus)}
              >
                <b>{visibleLine(problem.title, 60)}</b>{' '}
                <span className="ll-problem-count">{integer(problem.count)}</span>{' '}
                <span className="ll-dim">{visibleLine(problem.detail, 200)}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </section>
  );
}
