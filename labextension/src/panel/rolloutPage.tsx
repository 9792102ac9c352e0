/** The Rollout page: what happened, and why this reward, this split, this weight. */

import { useEffect, useRef } from 'react';

import { duration, fixed, integer, percent, shortId, signed, words } from '../format';
import type { RowTable } from '../rows';
import { visibleLine } from '../text';
import type { IRolloutDetail, IRolloutInfo } from '../wire';
import { CancelRollout } from './actions';
import { useDetail } from './hooks';
import { Notices } from './notices';
import { TextBlock } from './textBlock';
import { Transcript } from './transcript';
import { useView } from './view';

function Sentence({ rollout }: { rollout: IRolloutInfo }): JSX.Element {
  const { trans } = useView();
  const said = (label: string, value: string): JSX.Element => (
    <span className="ll-sentence-part">
      {label} <b>{value}</b>
    </span>
  );
  return (
    <p className="ll-sentence">
      <span className={`ll-pill ll-tone-${rollout.state}`} data-testid="ll-rollout-state">
        <i className="ll-dot" aria-hidden="true" />
        {words(rollout.state)}
      </span>
      {rollout.outcome && rollout.outcome !== rollout.state && said(trans.__('outcome'), words(rollout.outcome))}
      {rollout.reward !== null
        ? said(trans.__('reward'), fixed(rollout.reward))
        : said(trans.__('reward'), trans.__('none'))}
      {rollout.advantage !== null && said(trans.__('advantage'), signed(rollout.advantage))}
      {rollout.weight !== null &&
        said(
          rollout.step === null ? trans.__('weight') : trans.__('weight in step %1', rollout.step),
          percent(rollout.weight)
        )}
    </p>
  );
}

interface IGroupMate {
  readonly id: string;
  readonly reward: number;
  readonly advantage: number;
  readonly state: string;
}

function groupOf(rows: RowTable, group: string): readonly IGroupMate[] {
  const mates: IGroupMate[] = [];
  for (let row = 0; group && row < rows.size; row++) {
    if (rows.present[row] && rows.texts.group[row] === group) {
      mates.push({
        id: rows.text('id', row),
        reward: rows.numbers.reward[row],
        advantage: rows.numbers.advantage[row],
        state: rows.word('state', row)
      });
    }
  }
  return mates;
}

interface IGroupProps {
  readonly rollout: IRolloutInfo;
  readonly mates: readonly IGroupMate[];
  readonly onOpen: (id: string) => void;
}

function Group({ rollout, mates, onOpen }: IGroupProps): JSX.Element {
  const { trans } = useView();
  const rewards = mates.map(mate => mate.reward).filter(reward => !Number.isNaN(reward));
  const top = Math.max(...rewards, 1e-9);
  const equal = rewards.length > 1 && rewards.every(reward => reward === rewards[0]);
  return (
    <section className="ll-side-block">
      <h2>
        {trans.__('Group')} <span className="ll-dim">{trans.__('%1 rollouts of this task', mates.length)}</span>
      </h2>
      <ul className="ll-group">
        {mates.map(mate => (
          <li key={mate.id}>
            <button
              type="button"
              aria-current={mate.id === rollout.id ? 'true' : undefined}
              onClick={() => onOpen(mate.id)}
              title={visibleLine(mate.id)}
            >
              <i className={`ll-dot ll-tone-${mate.state}`} aria-hidden="true" />
              <span className="ll-group-id">{shortId(mate.id)}</span>
              <span className="ll-bar" aria-hidden="true">
                <i style={{ width: `${Math.max(0, Math.min(1, (mate.reward || 0) / top)) * 100}%` }} />
              </span>
              <span className="ll-num">{Number.isNaN(mate.reward) ? '–' : fixed(mate.reward, 2)}</span>
              <span className="ll-num ll-dim">{Number.isNaN(mate.advantage) ? '' : signed(mate.advantage, 2)}</span>
            </button>
          </li>
        ))}
      </ul>
      {equal && <p className="ll-dim">{trans.__('All rewards are equal: this group gives no signal.')}</p>}
    </section>
  );
}

function Facts({ rollout }: { rollout: IRolloutInfo }): JSX.Element {
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
    [trans.__('Attempt'), rollout.attempt !== null && rollout.attempt > 1 ? integer(rollout.attempt) : ''],
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

function Samples({ detail }: { detail: IRolloutDetail }): JSX.Element {
  const { trans } = useView();
  const { samples, breaks, calls } = detail;
  const ordinal = new Map(calls.map(call => [call.id, call.ordinal]));
  const trained = samples.reduce((sum, sample) => sum + sample.trained, 0);
  return (
    <section className="ll-side-block" data-testid="ll-samples">
      <h2>
        {trans.__('Training samples')}{' '}
        <span className="ll-dim">{samples.length === 0 ? '' : trans.__('%1 trained tokens', integer(trained))}</span>
      </h2>
      {samples.length === 0 && (
        <p className="ll-dim">
          {detail.rollout.mode === 'train'
            ? trans.__('None yet: samples are made when a step consumes the rollout.')
            : trans.__('None: only training rollouts become samples.')}
        </p>
      )}
      <ol className="ll-samples">
        {samples.map((sample, i) => (
          <li key={i}>
            <div className="ll-sample-line">
              <span>
                {trans._n(
                  'call %2',
                  'calls %2',
                  sample.calls.length,
                  sample.calls.map(id => ordinal.get(id) ?? '?').join(', ')
                )}
              </span>
              <span className="ll-num">
                {trans.__('%1 of %2 tokens train', integer(sample.trained), integer(sample.tokens))}
              </span>
            </div>
            <span className="ll-bar" aria-hidden="true">
              <i style={{ width: `${sample.tokens > 0 ? (sample.trained / sample.tokens) * 100 : 0}%` }} />
            </span>
            {Object.entries(sample.masked).map(([reason, n]) => (
              <p key={reason} className="ll-dim">
                {trans.__('%1 sampled tokens masked: %2', integer(n), words(reason))}
              </p>
            ))}
          </li>
        ))}
      </ol>
      {calls.length > 1 && samples.length > 0 && breaks.length === 0 && (
        <p className="ll-dim">{trans.__('No break: every call continued the one before.')}</p>
      )}
      {breaks.length > 0 && (
        <ul className="ll-breaks">
          {breaks.map((item, i) => (
            <li key={i}>
              {trans.__('Break at call %1:', ordinal.get(item.callId) ?? '?')} <b>{words(item.cause)}</b>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

interface IOutputProps {
  readonly title: string;
  readonly text: string;
  readonly testId: string;
  readonly tone?: 'error';
}

function Output({ title, text, testId, tone }: IOutputProps): JSX.Element | null {
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

function Verdict({ rollout }: { rollout: IRolloutInfo }): JSX.Element {
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

function Body({ detail, onOpen }: { detail: IRolloutDetail; onOpen: (id: string) => void }): JSX.Element {
  const { source, trans } = useView();
  const { rollout } = detail;
  const mates = groupOf(source.model.rows, rollout.groupId);
  return (
    <div className={`ll-rollout-body ${mates.length > 1 ? '' : 'll-mod-alone'}`}>
      <div className="ll-main">
        <Transcript detail={detail} />
        <Output title={trans.__('Output')} text={rollout.output} testId="ll-output" />
        <Output title={trans.__('Error')} text={rollout.error} testId="ll-error" tone="error" />
        <Output title={trans.__('stdout')} text={rollout.stdout} testId="ll-stdout" />
        <Output title={trans.__('stderr')} text={rollout.stderr} testId="ll-stderr" />
        <Verdict rollout={rollout} />
      </div>
      {mates.length > 1 && (
        <aside className="ll-side ll-side-group" aria-label={trans.__('Group')}>
          <Group rollout={rollout} mates={mates} onOpen={onOpen} />
        </aside>
      )}
      <aside className="ll-side ll-side-facts" aria-label={trans.__('Samples and facts')}>
        <Samples detail={detail} />
        <Facts rollout={rollout} />
      </aside>
    </div>
  );
}

/** What of a rollout's row may change what its page shows. */
function stampOf(rows: RowTable, id: string): string {
  const row = rows.rowOf(id);
  if (row < 0) {
    return '';
  }
  const { calls, step, reward, finished_at } = rows.numbers;
  return [rows.word('state', row), calls[row], step[row], reward[row], finished_at[row]].join();
}

export interface IRolloutPageProps {
  readonly id: string;
  readonly onOpen: (id: string) => void;
  /** Absent where there is nothing to go back to, e.g. a saved rollout view. */
  readonly onBack?: () => void;
}

export function RolloutPage({ id, onOpen, onBack }: IRolloutPageProps): JSX.Element {
  const { source, trans, visible } = useView();
  const stamp = stampOf(source.model.rows, id);
  const { detail, error, loading, retry } = useDetail(source, id, stamp, visible);
  const page = useRef<HTMLDivElement>(null);
  const row = source.model.rows.rowOf(id);
  const live = row >= 0 && ['queuing', 'running'].includes(source.model.rows.word('state', row));
  useEffect(() => {
    if (onBack) {
      page.current?.focus({ preventScroll: true });
    }
    page.current?.scrollTo?.(0, 0);
  }, [id, onBack]);

  return (
    <div
      ref={page}
      className="ll-page ll-rollout-page"
      data-testid="ll-rollout-page"
      data-rollout-id={id}
      tabIndex={-1}
      onKeyDown={event => {
        if (event.key === 'Escape' && onBack) {
          onBack();
        }
      }}
    >
      <div className="ll-rollout-head">
        <div className="ll-title">
          {onBack && (
            <button type="button" className="ll-button ll-back" onClick={onBack} data-testid="ll-back">
              {trans.__('← Run')}
            </button>
          )}
          <h1 title={visibleLine(id)}>{trans.__('Rollout %1', shortId(id))}</h1>
          {live && source.canAct && <CancelRollout id={id} />}
          {detail && <span className="ll-task">{visibleLine(detail.rollout.prompt, 160)}</span>}
        </div>
        {detail && <Sentence rollout={detail.rollout} />}
      </div>
      <Notices />
      {error && (
        <p className="ll-notice ll-mod-error" role="alert" data-testid="ll-detail-error">
          {error}
          <button type="button" className="ll-link" onClick={retry}>
            {trans.__('Try again')}
          </button>
        </p>
      )}
      {loading && (
        <p className="ll-loading" role="status">
          {trans.__('Fetching the transcript…')}
        </p>
      )}
      {detail?.cut && (
        <p className="ll-notice ll-mod-quiet">
          {trans.__('Shortened to fit into the notebook: %1.', visibleLine(detail.cut))}
        </p>
      )}
      {detail && <Body detail={detail} onOpen={onOpen} />}
    </div>
  );
}
