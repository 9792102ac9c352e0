/** The rollout's group: rewards, advantages, weights, and what each would weigh under the other normalisers. */

import { useState } from 'react';

import { fixed, percent, shortId, signed, words } from '../format';
import { isInfrastructure } from '../outcomes';
import { visibleLine } from '../text';
import type { IGroupWeights, IWeighed } from '../wireRollout';
import { Choice } from './choice';
import { useView } from './view';

interface IMateProps {
  readonly mate: IWeighed;
  readonly current: boolean;
  readonly ghost: string;
  readonly top: number;
  readonly onOpen: (id: string) => void;
}

/** Why a rollout does not count, or empty. */
function excluded(mate: IWeighed): string {
  if (mate.state === 'queuing' || mate.state === 'running') {
    return words(mate.state);
  }
  return mate.reward === null ? words(mate.outcome || 'no reward') : '';
}

function Mate({ mate, current, ghost, top, onOpen }: IMateProps): JSX.Element {
  const { trans } = useView();
  const why = excluded(mate);
  const share = (value: number | null | undefined): string => `${Math.min(1, Math.max(0, (value ?? 0) / top)) * 100}%`;
  return (
    <li>
      <button
        type="button"
        aria-current={current ? 'true' : undefined}
        onClick={() => onOpen(mate.id)}
        title={visibleLine(mate.id)}
      >
        <i className={`ll-dot ll-tone-${isInfrastructure(mate.outcome) ? 'warn' : mate.state}`} aria-hidden="true" />
        <span className="ll-group-id">{shortId(mate.id, 10)}</span>
        <span className="ll-num">{mate.reward === null ? '–' : fixed(mate.reward, 2)}</span>
        <span className="ll-num ll-dim">{mate.advantage === null ? '' : signed(mate.advantage, 2)}</span>
        {why ? (
          <span className="ll-dim ll-group-why">{why}</span>
        ) : (
          <span className="ll-weight">
            <span className="ll-weight-bars" aria-hidden="true">
              <i style={{ width: share(mate.weight) }} />
              <i className="ll-mod-ghost" style={{ width: share(mate.ghosts[ghost]) }} />
            </span>
            <span className="ll-num">{mate.weight === null ? '' : percent(mate.weight)}</span>
            <span className="ll-num ll-dim">{ghost in mate.ghosts ? percent(mate.ghosts[ghost]) : ''}</span>
          </span>
        )}
        {mate.breaks > 0 && (
          <span className="ll-group-cut" title={trans.__('%1 breaks, %2 samples', mate.breaks, mate.samples)}>
            ⌁{mate.samples}
          </span>
        )}
      </button>
    </li>
  );
}

export interface IGroupProps {
  readonly id: string;
  readonly weights: IGroupWeights;
  readonly onOpen: (id: string) => void;
}

export function Group({ id, weights, onOpen }: IGroupProps): JSX.Element {
  const { trans } = useView();
  const { rollouts, normalizer } = weights;
  const others = weights.normalizers.filter(name => name !== normalizer);
  const [picked, setPicked] = useState('');
  const ghost = others.includes(picked) ? picked : others.includes('sample_mean') ? 'sample_mean' : (others[0] ?? '');
  const told = rollouts.some(mate => mate.weight !== null);
  const top = Math.max(1e-9, ...rollouts.flatMap(mate => [mate.weight ?? 0, mate.ghosts[ghost] ?? 0]));
  return (
    <section className="ll-side-block ll-group-block" data-testid="ll-group">
      <h2>
        {trans.__('Group')} <span className="ll-dim">{trans.__('%1 rollouts of this task', rollouts.length)}</span>
      </h2>
      <div className="ll-group-head" aria-hidden="true">
        <span />
        <span />
        <span>{trans.__('reward')}</span>
        <span>{trans.__('adv.')}</span>
        <span>{told ? trans.__('weight') : ''}</span>
      </div>
      <ul className="ll-group">
        {rollouts.map(mate => (
          <Mate key={mate.id} {...{ mate, ghost, top, onOpen }} current={mate.id === id} />
        ))}
      </ul>
      {told && others.length > 0 && (
        <p className="ll-group-key">
          <i className="ll-key" aria-hidden="true" /> {words(normalizer)}
          <i className="ll-key ll-mod-ghost" aria-hidden="true" />
          <Choice
            label={trans.__('Compare with the normaliser')}
            options={others.map(name => [name, words(name)] as const)}
            value={ghost}
            onChange={setPicked}
          />
        </p>
      )}
      {weights.flat && (
        <p className="ll-dim" data-testid="ll-flat">
          {trans.__('All rewards are equal: this group gives no signal.')}
        </p>
      )}
    </section>
  );
}
