/** How a rollout ended: what it printed, and the grader's verdict last. */

import { fixed } from '../format';
import { visibleLine } from '../text';
import type { IRolloutInfo } from '../wireRollout';
import { TextBlock } from './textBlock';
import { useView } from './view';

interface IOutputProps {
  readonly title: string;
  readonly text: string;
  readonly testId: string;
  readonly tone?: 'error';
}

export function Output({ title, text, testId, tone }: IOutputProps): JSX.Element | null {
  if (!text) {
    return null;
  }
  return (
    <section className={`ll-output ${tone ? `ll-mod-${tone}` : ''}`}>
      <h2>{title}</h2>
      <TextBlock code text={text} testId={testId} />
    </section>
  );
}

export function Verdict({ rollout }: { rollout: IRolloutInfo }): JSX.Element {
  const { trans } = useView();
  const waiting = rollout.state === 'queuing' || rollout.state === 'running';
  return (
    <section
      className={`ll-verdict ll-tone-${rollout.state}`}
      data-testid="ll-verdict"
      data-reward={rollout.reward ?? ''}
    >
      <h2>{trans.__('Grader')}</h2>
      <div className="ll-verdict-body">
        <span className="ll-verdict-reward">{rollout.reward === null ? '–' : fixed(rollout.reward)}</span>
        <div>
          {rollout.verdict && <TextBlock text={rollout.verdict} lines={20} />}
          {!rollout.verdict && (
            <p className="ll-dim">
              {waiting
                ? trans.__('The verdict comes when the agent is gone.')
                : rollout.reward === null
                  ? trans.__('No reward was given.')
                  : trans.__('The grader gave a number and no words.')}
            </p>
          )}
          {rollout.answer && (
            <p className="ll-expected">
              {trans.__('expected')} <code>{visibleLine(rollout.answer, 200)}</code>
            </p>
          )}
        </div>
      </div>
    </section>
  );
}
