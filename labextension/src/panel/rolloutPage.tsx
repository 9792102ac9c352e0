/** The Rollout page: what happened, and why this reward, this split, this weight. */

import { useEffect, useRef, useState } from 'react';

import { decodeWeights } from '../decodeAnswers';
import { fixed, percent, shortId, signed, words } from '../format';
import type { RowTable } from '../rows';
import type { Shade } from '../strip/shades';
import { visibleLine } from '../text';
import type { IGroupWeights, IRolloutDetail, IRolloutInfo } from '../wireRollout';
import { CancelRollout } from './actions';
import { branches, CallTreeView } from './callTreeView';
import { CopyCode } from './copyCode';
import { Group } from './group';
import { useDetail } from './hooks';
import { Notices } from './notices';
import { Output, Verdict } from './rolloutEnd';
import { Facts } from './rolloutFacts';
import { Strips } from './strips';
import { Transcript } from './transcript';
import { useAnswer } from './useAnswer';
import { useView } from './view';

function Sentence({ rollout, said: what }: { rollout: IRolloutInfo; said: string }): JSX.Element {
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
      {what && (
        <span className="ll-sentence-said" data-testid="ll-sentence">
          {what}
        </span>
      )}
    </p>
  );
}

interface IBodyProps {
  readonly detail: IRolloutDetail;
  readonly weights: IGroupWeights | null;
  readonly stamp: string;
  readonly shade?: Shade;
  readonly onOpen: (id: string) => void;
}

/** Beside a notebook there is room for one column: either the transcript or the tokens. */
type Column = 'transcript' | 'tokens';

function Body({ detail, weights, stamp, shade, onOpen }: IBodyProps): JSX.Element {
  const { trans } = useView();
  const [column, setColumn] = useState<Column>(shade ? 'tokens' : 'transcript');
  const { rollout } = detail;
  const tabs: readonly [Column, string][] = [
    ['transcript', trans.__('Transcript')],
    ['tokens', trans.__('Samples and tokens')]
  ];
  return (
    <div className="ll-rollout-body" data-column={column}>
      <div className="ll-rollout-side">
        {weights && weights.rollouts.length > 1 && <Group id={rollout.id} weights={weights} onOpen={onOpen} />}
        <Facts rollout={rollout} earlier={detail.earlierOutcomes} />
      </div>
      <div className="ll-columns-switch" role="group" aria-label={trans.__('What to show')}>
        {tabs.map(([name, label]) => (
          <button key={name} type="button" aria-pressed={name === column} onClick={() => setColumn(name)}>
            {label}
          </button>
        ))}
      </div>
      <div className="ll-main">
        {branches(detail.calls) && <CallTreeView calls={detail.calls} />}
        <Transcript detail={detail} />
        <Output title={trans.__('Output')} text={rollout.output} testId="ll-output" />
        <Output title={trans.__('Error')} text={rollout.error} testId="ll-error" tone="error" />
        <Output title={trans.__('stdout')} text={rollout.stdout} testId="ll-stdout" />
        <Output title={trans.__('stderr')} text={rollout.stderr} testId="ll-stderr" />
        <Verdict rollout={rollout} />
      </div>
      <Strips detail={detail} stamp={stamp} shade={shade} />
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
  /** What its tokens are coloured by at first; the token that stands out is selected. */
  readonly shade?: Shade;
  readonly onOpen: (id: string) => void;
  /** Absent where there is nothing to go back to, e.g. a saved rollout view. */
  readonly onBack?: () => void;
}

export function RolloutPage({ id, shade, onOpen, onBack }: IRolloutPageProps): JSX.Element {
  const { source, trans, visible } = useView();
  const stamp = stampOf(source.model.rows, id);
  const { detail, error, loading, retry } = useDetail(source, id, stamp, visible);
  const { value: weights } = useAnswer(source, 'weights', { id }, stamp, visible, answer =>
    decodeWeights(answer.result)
  );
  const selected = source.selection.current.call;
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
          {detail && <CopyCode ordinal={detail.calls.find(call => call.id === selected)?.ordinal ?? null} />}
          {detail && <span className="ll-task">{visibleLine(detail.rollout.prompt, 160)}</span>}
        </div>
        {detail && <Sentence rollout={detail.rollout} said={weights?.sentence ?? ''} />}
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
      {detail && <Body {...{ detail, weights, stamp, shade, onOpen }} />}
    </div>
  );
}
