/** A rollout in names and times. */

import { duration, integer, words } from '../format';
import { visibleLine } from '../text';
import type { IRolloutInfo } from '../wireRollout';
import { useView } from './view';

interface IFacts {
  readonly rollout: IRolloutInfo;
  readonly earlier: readonly string[];
}

/** `earlier`: how the attempts before this one ended. */
export function Facts({ rollout, earlier }: IFacts): JSX.Element {
  const { source, trans } = useView();
  const now = source.model.kernelNow;
  const end = rollout.finishedAt ?? (rollout.state === 'running' ? now : null);
  const took = rollout.startedAt !== null && end !== null ? end - rollout.startedAt : null;
  const waited =
    rollout.startedAt !== null && rollout.createdAt !== null ? rollout.startedAt - rollout.createdAt : null;
  const facts: [string, string][] = [
    [trans.__('Harness'), `${visibleLine(rollout.harness)} ${visibleLine(rollout.harnessVersion.slice(0, 8))}`.trim()],
    [trans.__('Mode'), words(rollout.mode)],
    [trans.__('Step'), rollout.step === null ? '' : integer(rollout.step)],
    [trans.__('Queued for'), waited === null ? '' : duration(waited)],
    [trans.__('Ran for'), took === null ? '' : duration(took)],
    [trans.__('Attempt'), attempts(rollout.attempt, earlier)],
    [trans.__('Exit code'), rollout.exitCode === null ? '' : String(rollout.exitCode)]
  ];
  return (
    <section className="ll-side-block">
      <h2>{trans.__('Rollout')}</h2>
      <dl className="ll-facts">
        {facts
          .filter(([, value]) => value !== '')
          .map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </section>
  );
}

/** Nothing of a first attempt; else its number and why there is another. */
function attempts(attempt: number | null, earlier: readonly string[]): string {
  if (attempt === null || attempt < 2) {
    return '';
  }
  return [integer(attempt), ...earlier.map(outcome => words(visibleLine(outcome)))].join(' · ');
}
