/** What differs between two sides: settings, numbers, and what became of the same tasks. */

import type { CSSProperties } from 'react';

import { compareMetrics, compareSettings, compareTasks, ISide, ITaskSide } from '../compare';
import { decodeSettings } from '../decodeAnswers';
import { fixed, reading, shortId, words } from '../format';
import { sharedPrefix } from '../order';
import { visibleLine } from '../text';
import type { IRunSource } from '../tokens';
import { STEP_COUNTS, StepNumber } from '../wire';
import { useAnswer } from './useAnswer';
import { useView } from './view';

export interface ISidesProps {
  readonly a: ISide;
  readonly b: ISide;
  /** How the sides are called. */
  readonly names: readonly [string, string];
}

interface IHeadProps {
  readonly first: string;
  readonly names: ISidesProps['names'];
  /** What the column after theirs is called; there are numbers under all of them. */
  readonly more?: string;
}

function Head({ first, names, more }: IHeadProps): JSX.Element {
  const look = more && 'll-num';
  return (
    <thead>
      <tr>
        <th scope="col">{first}</th>
        {names.map((name, i) => (
          <th key={i} scope="col" className={look}>
            <i className={`ll-swatch-ab ll-mod-${'ab'[i]}`} aria-hidden="true" />
            {name}
          </th>
        ))}
        {more && (
          <th scope="col" className={look}>
            {more}
          </th>
        )}
      </tr>
    </thead>
  );
}

function useSettings(source: IRunSource): ReturnType<typeof useAnswer<ReadonlyMap<string, string>>> {
  const run = source.model.run?.id ?? '';
  return useAnswer(source, 'settings', { run }, '', true, answer => decodeSettings(answer.result));
}

/** Settings of two runs that are not equal. */
export function SettingsTable({
  sources,
  names
}: {
  sources: readonly [IRunSource, IRunSource];
  names: ISidesProps['names'];
}): JSX.Element {
  const { trans } = useView();
  const a = useSettings(sources[0]);
  const b = useSettings(sources[1]);
  const error = a.error || b.error;
  if (error || !a.value || !b.value) {
    return <p className={error ? 'll-notice ll-mod-warn' : 'll-dim'}>{error || trans.__('Reading the settings…')}</p>;
  }
  const pairs = compareSettings(a.value, b.value);
  if (pairs.length === 0) {
    return <p className="ll-dim">{trans.__('Both runs have the same settings.')}</p>;
  }
  return (
    <table data-testid="ll-compare-settings">
      <Head first={trans.__('Setting')} names={names} />
      <tbody>
        {pairs.map(pair => (
          <tr key={pair.name}>
            <th scope="row">{visibleLine(pair.name, 60)}</th>
            {[pair.a, pair.b].map((value, i) => (
              <td key={i} className={value === null ? 'll-dim' : 'll-code'}>
                {value === null ? trans.__('none') : visibleLine(value, 120)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Numbers whose stored name says too little. */
const LABELS: Partial<Record<StepNumber, string>> = {
  version: 'policy version',
  reward: 'reward, mean',
  entropy: 'entropy, nats',
  approx_kl: 'KL to the sampler, nats',
  grad_norm: 'gradient norm',
  clip_frac: 'clip fraction',
  no_signal: 'groups without signal',
  ratio_mean: 'ratio, mean',
  ratio_max: 'ratio, largest',
  staleness: 'staleness, mean',
  staleness_max: 'staleness, largest',
  padding: 'padding, share of slots',
  length_mean: 'sample length, mean',
  length_max: 'sample length, longest',
  tokens: 'trained tokens',
  infrastructure: 'infrastructure failures',
  logprob_diff_max: 'log-prob mismatch, largest',
  seconds: 'seconds in all',
  seconds_collect: 'seconds collecting',
  seconds_update: 'seconds updating'
};

export function NumbersTable({ a, b, names }: ISidesProps): JSX.Element {
  const { trans } = useView();
  const pairs = compareMetrics(a, b);
  if (pairs.length === 0) {
    return <p className="ll-dim">{trans.__('No step yet: there are no numbers to compare.')}</p>;
  }
  return (
    <table data-testid="ll-compare-numbers">
      <Head first={trans.__('Number')} names={names} more={trans.__('difference')} />
      <tbody>
        {pairs.map(pair => {
          const told = (value: number | null): string => reading(value, STEP_COUNTS.has(pair.name));
          return (
            <tr key={pair.name}>
              <th scope="row">{trans.__(LABELS[pair.name] ?? words(pair.name))}</th>
              <td className="ll-num">{told(pair.a)}</td>
              <td className="ll-num">{told(pair.b)}</td>
              <td className="ll-num">{pair.a === null || pair.b === null ? '' : told(pair.b - pair.a)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** How much of its colour a mark has: the higher the reward, the more, for the usual range 0…1. */
function filled(reward: number): number {
  return 30 * Math.max(0, Math.min(1, reward || 0));
}

/** Rollouts of one task that are named; the count is whole. */
const NAMED = 24;

function Rollouts({ side, onOpen }: { side: ITaskSide | null; onOpen: (id: string) => void }): JSX.Element {
  const { trans } = useView();
  if (!side) {
    return <td className="ll-dim">{trans.__('not in it')}</td>;
  }
  return (
    <td>
      <b className="ll-compare-mean">{Number.isNaN(side.reward) ? trans.__('no reward') : fixed(side.reward, 2)}</b>
      <span className="ll-marks">
        {side.rollouts.slice(0, NAMED).map(({ id, reward, state }) => (
          <button
            key={id}
            type="button"
            className={`ll-mark ll-tone-${state}`}
            title={visibleLine(id)}
            style={{ '--ll-reward': `${filled(reward)}%` } as CSSProperties}
            aria-label={trans.__('rollout %1, reward %2', shortId(id), fixed(reward, 2))}
            onClick={() => onOpen(id)}
          >
            {fixed(reward, Number.isInteger(reward) ? 0 : 2)}
          </button>
        ))}
        {side.rollouts.length > NAMED && (
          <span className="ll-dim">{trans.__('and %1 more', side.rollouts.length - NAMED)}</span>
        )}
      </span>
    </td>
  );
}

/** Tasks that are listed, those that differ most first. */
const LISTED = 300;

export interface ITasksProps extends ISidesProps {
  /** Open a rollout of the first or of the second side. */
  readonly onOpen: readonly [(id: string) => void, (id: string) => void];
}

export function TasksTable({ a, b, names, onOpen }: ITasksProps): JSX.Element {
  const { trans } = useView();
  const pairs = compareTasks(a, b);
  const shared = sharedPrefix(pairs.length, place => pairs[place].task);
  const apart = pairs.length > 0 && !pairs.some(pair => pair.a && pair.b);
  return (
    <table className="ll-compare-tasks" data-testid="ll-compare-tasks">
      <Head first={trans.__('Task')} names={names} />
      <tbody>
        {apart && (
          <tr>
            <td colSpan={3} className="ll-dim">
              {trans.__('No task is on both sides.')}
            </td>
          </tr>
        )}
        {pairs.slice(0, LISTED).map(pair => (
          <tr key={pair.task}>
            <th scope="row" title={shared && visibleLine(pair.task, 400)}>
              {shared && <span className="ll-dim">… </span>}
              {visibleLine(pair.task.slice(shared.length), 90)}
            </th>
            <Rollouts side={pair.a} onOpen={onOpen[0]} />
            <Rollouts side={pair.b} onOpen={onOpen[1]} />
          </tr>
        ))}
        {pairs.length > LISTED && (
          <tr>
            <td colSpan={3} className="ll-dim">
              {trans.__('The %1 tasks that differ most, of %2.', LISTED, pairs.length)}
            </td>
          </tr>
        )}
      </tbody>
    </table>
  );
}
