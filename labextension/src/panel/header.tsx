/** The head of the Run page: what is it doing, is it learning, what is wrong. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReactNode } from 'react';

import { compact, elapsed, fixed, integer, shortId, words } from '../format';
import type { RunModel } from '../model';
import { visibleLine } from '../text';
import type { IRunInfo } from '../wire';
import { Actions } from './actions';
import { useSeconds } from './hooks';
import { Notices } from './notices';
import { useView } from './view';

const LANE = ['collecting', 'draining', 'updating', 'publishing'] as const;

/** Where a phase is drawn: closing is the beginning of draining, waiting for staleness is part of collecting. */
const LANE_OF: Readonly<Record<string, (typeof LANE)[number]>> = {
  collecting: 'collecting',
  staleness_wait: 'collecting',
  closing: 'draining',
  draining: 'draining',
  updating: 'updating',
  publishing: 'publishing'
};

function PhaseLane(): JSX.Element {
  const { source, trans } = useView();
  const { model } = source;
  const { phase } = model;
  const current = model.active ? LANE_OF[phase.name] : undefined;
  const seconds = phase.since === null ? null : model.kernelNow - phase.since;
  return (
    <ol
      className="ll-lane"
      data-testid="ll-phase"
      data-phase={phase.name}
      aria-label={trans.__('Phase')}
      hidden={!model.active}
    >
      {LANE.map(name => {
        const here = name === current;
        return (
          <li key={name} className={here ? 'll-mod-current' : ''} aria-current={here ? 'step' : undefined}>
            <span className="ll-lane-name">{here ? words(phase.name) : name}</span>
            {here && <span className="ll-lane-time">{elapsed(seconds)}</span>}
          </li>
        );
      })}
    </ol>
  );
}

/** The oldest rollout, and what it waits for since when. */
function Oldest({ onOpen }: { onOpen: (id: string) => void }): JSX.Element | null {
  const { source, trans } = useView();
  const { active, kernelNow, oldest } = source.model;
  if (!active || !oldest) {
    return null;
  }
  const waits: Readonly<Record<string, string>> = {
    model: trans.__('waits for the model'),
    resume: trans.__('its call is held'),
    agent: trans.__('its own work or tools')
  };
  const ago = (at: number | null): string => elapsed(at === null ? null : kernelNow - at);
  return (
    <button
      type="button"
      className="ll-link ll-oldest"
      data-testid="ll-oldest"
      data-waits-for={oldest.waitsFor}
      title={trans.__('Open the rollout that has run longest: %1', visibleLine(oldest.rollout))}
      onClick={() => onOpen(oldest.rollout)}
    >
      {trans.__(
        'oldest %1 · %2 for %3',
        ago(oldest.startedAt),
        waits[oldest.waitsFor] ?? words(oldest.waitsFor),
        ago(oldest.since)
      )}
    </button>
  );
}

function Progress({ model }: { model: RunModel }): JSX.Element | null {
  const { trans } = useView();
  const { step, version } = model.phase;
  const total = model.run?.stepsTotal ?? null;
  if (step === null && version === null && total === null) {
    return null;
  }
  const { run } = model;
  const took = run && run.createdAt !== null ? (run.finishedAt ?? model.kernelNow) - run.createdAt : null;
  const done = model.steps.length > 0 ? model.steps[model.steps.length - 1].index + 1 : 0;
  return (
    <div className="ll-progress">
      <span className="ll-progress-text">
        {trans.__('Step')} <b>{integer(model.active ? (step ?? done) : done)}</b>
        {total ? <span className="ll-dim"> {trans.__('of %1', integer(total))}</span> : null}
      </span>
      {total ? (
        <progress max={total} value={Math.min(done, total)} aria-label={trans.__('Steps done')}>
          {`${done} / ${total}`}
        </progress>
      ) : null}
      {version !== null && (
        <span className="ll-version" title={trans.__('Policy version that answers now')}>
          v{version}
        </span>
      )}
      {took !== null && (
        <span className="ll-dim" title={trans.__('Time since the run began')}>
          {elapsed(took)}
        </span>
      )}
    </div>
  );
}

interface IStatProps {
  readonly label: string;
  readonly value: number | null;
  readonly testId?: string;
  readonly hint?: string;
  /** Behind the value, dimmed. */
  readonly of?: string;
  readonly tone?: 'queuing' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'warn' | '';
  readonly show?: (value: number | null) => string;
}

function Stat({ label, value, testId, hint, of = '', tone = '', show = integer }: IStatProps): JSX.Element {
  return (
    <div className={`ll-stat ${tone && `ll-tone-${tone}`} ${value === 0 ? 'll-mod-zero' : ''}`} title={hint}>
      <dd data-testid={testId} data-value={value ?? ''}>
        {show(value)}
        {of && <span className="ll-stat-of">{of}</span>}
      </dd>
      <dt>{label}</dt>
    </div>
  );
}

function StatGroup({ title, aside, children }: { title: string; aside?: ReactNode; children: ReactNode }): JSX.Element {
  return (
    <section className="ll-stat-group">
      <h2>
        {title}
        {aside}
      </h2>
      <dl>{children}</dl>
    </section>
  );
}

/** Each state's share of the rollouts, as one thin bar. */
function StateBar({ model }: { model: RunModel }): JSX.Element {
  const { counters } = model;
  const parts = ['succeeded', 'failed', 'cancelled', 'running', 'queuing'] as const;
  return (
    <span className="ll-state-bar" aria-hidden="true">
      {parts.map(name => (
        <i key={name} className={`ll-tone-${name}`} style={{ flexGrow: counters[name] }} />
      ))}
    </span>
  );
}

/** Agents that run, and how many may: their queue waits for the model or for places. */
function Running({ model }: { model: RunModel }): JSX.Element {
  const { trans } = useView();
  const { counters, limit } = model;
  const says: Readonly<Record<string, string>> = {
    default: trans.__('four per core of this machine, as Lab(concurrency=…) does not say'),
    set: trans.__('as Lab(concurrency=…) says'),
    auto: trans.__('concurrency="auto": as many as the model and this machine can take now'),
    cluster: trans.__('as lab.kubernetes(concurrency=…) says')
  };
  const shown = limit && model.active ? limit : null;
  return (
    <Stat
      label={trans.__('running')}
      value={counters.running}
      of={shown ? trans.__(' of %1', integer(shown.agents)) : ''}
      hint={
        shown
          ? trans.__('%1 agents at a time: %2', integer(shown.agents), says[shown.by] ?? words(shown.by))
          : undefined
      }
      testId="ll-count-running"
      tone="running"
    />
  );
}

function Stats(): JSX.Element {
  const { source, trans } = useView();
  const { model } = source;
  const { counters, reward } = model;
  const held = reward.heldOut[reward.heldOut.length - 1];
  const total = (
    <span className="ll-total" data-testid="ll-count-total" data-value={counters.total}>
      {integer(counters.total)}
    </span>
  );
  return (
    <div className="ll-stats">
      <StatGroup
        title={trans.__('Rollouts')}
        aside={
          <>
            {total}
            <StateBar model={model} />
          </>
        }
      >
        <Stat label={trans.__('queued')} value={counters.queuing} testId="ll-count-queuing" tone="queuing" />
        <Running model={model} />
        <Stat label={trans.__('succeeded')} value={counters.succeeded} testId="ll-count-succeeded" tone="succeeded" />
        <Stat label={trans.__('failed')} value={counters.failed} testId="ll-count-failed" tone="failed" />
        <Stat label={trans.__('cancelled')} value={counters.cancelled} testId="ll-count-cancelled" tone="cancelled" />
        <Stat
          label={trans.__('infrastructure')}
          value={counters.infrastructure}
          testId="ll-count-infrastructure"
          tone="warn"
          hint={trans.__('Ended for reasons that say nothing about the agent; never counted as reward 0')}
        />
      </StatGroup>
      <StatGroup title={trans.__('Model calls')}>
        <Stat label={trans.__('calls')} value={counters.calls} testId="ll-count-calls" />
        <Stat label={trans.__('in flight')} value={counters.in_flight} testId="ll-count-in-flight" tone="running" />
        <Stat
          label={trans.__('held')}
          value={counters.held}
          testId="ll-count-held"
          tone="warn"
          hint={trans.__('Waiting for the update to end; to the agent it looks like latency')}
        />
        <Stat
          label={trans.__('tokens/s')}
          value={model.active ? model.tokensPerSecond : null}
          hint={trans.__('Sampled tokens per second over the last 10 s')}
          show={compact}
        />
      </StatGroup>
      <StatGroup title={trans.__('Reward')}>
        <Stat label={trans.__('now')} value={reward.now} show={fixed} hint={trans.__('Mean of the latest step')} />
        <Stat label={trans.__('best')} value={reward.best} show={fixed} />
        <Stat
          label={held ? trans.__('held-out, step %1', held.step) : trans.__('held-out')}
          value={held?.value ?? null}
          show={fixed}
          hint={held ? trans.__('Mean over %1 held-out rollouts', integer(held.n)) : undefined}
        />
      </StatGroup>
    </div>
  );
}

/** The run's state as the title says it: a run whose lab is gone is not running any more. */
function titleState(model: RunModel): string {
  if (!model.run) {
    return model.paused ? 'paused' : 'idle';
  }
  if (model.run.state !== 'running') {
    return model.run.state;
  }
  return model.labOpen ? (model.paused ? 'paused' : 'running') : 'interrupted';
}

function titleText(run: IRunInfo | null, trans: TranslationBundle): string {
  if (!run) {
    return trans.__('Lab');
  }
  return run.kind === 'single' ? trans.__('Single rollouts') : trans.__('Run %1', shortId(run.id));
}

function Title(): JSX.Element {
  const { source, trans } = useView();
  const { model } = source;
  const { run } = model;
  const state = titleState(model);
  return (
    <div className="ll-title">
      <h1 title={run ? visibleLine(run.id) : undefined}>{titleText(run, trans)}</h1>
      <span
        className={`ll-pill ll-run-${state}`}
        title={run?.reason ? visibleLine(run.reason) : undefined}
        data-testid="ll-run-state"
      >
        {words(state)}
      </span>
      {run?.harness && (
        <span className="ll-fact" title={trans.__('Harness')}>
          {visibleLine(run.harness, 60)}
        </span>
      )}
      {run?.policy && (
        <span className="ll-fact" title={trans.__('Policy')}>
          {visibleLine(run.policy, 60)}
        </span>
      )}
      {model.unsandboxed && (
        <span
          className="ll-badge"
          title={trans.__(
            'Agents run as your user: they can read and write your files. Only the model routes are guarded.'
          )}
        >
          {trans.__('unsandboxed')}
        </span>
      )}
    </div>
  );
}

export interface IHeaderProps {
  readonly controls?: boolean;
  readonly onOpen?: (id: string) => void;
}

/** @param controls - whether to offer buttons; a compact view in a cell has none. */
export function Header({ controls = true, onOpen }: IHeaderProps): JSX.Element {
  const { source, visible } = useView();
  useSeconds(visible && source.status === 'live');
  return (
    <div className="ll-header" data-testid="ll-header">
      <div className="ll-head-top">
        <Title />
        {controls && source.canAct && <Actions />}
      </div>
      <Notices />
      {source.model.run !== null && source.model.run.kind !== 'single' && (
        <div className="ll-head-phase">
          <PhaseLane />
          <Progress model={source.model} />
          {onOpen && <Oldest onOpen={onOpen} />}
        </div>
      )}
      <Stats />
    </div>
  );
}
