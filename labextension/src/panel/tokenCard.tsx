/** Everything about one token. */

import { fixed, integer, percent, signed, words } from '../format';
import { tokenLabel } from '../strip/flow';
import type { SampleTokens } from '../strip/sampleTokens';
import { useView } from './view';

export interface ITokenCardProps {
  readonly tokens: SampleTokens;
  readonly token: number;
  readonly callLabel: (callId: string) => string;
  readonly advantage: number | null;
}

export function TokenCard({ tokens, token, callLabel, advantage }: ITokenCardProps): JSX.Element {
  const { trans } = useView();
  const role = tokens.role(token);
  const sampled = role === 'sampled' || tokens.isMasked(token);
  const missing = trans.__('not computed');
  const told = (value: number, show: (value: number) => string): string =>
    Number.isNaN(value) ? missing : show(value);
  const number = (name: Parameters<SampleTokens['number']>[0]): number => tokens.number(name, token);
  const clipped = number('clipped');
  const facts: readonly [string, string][] = sampled
    ? [
        [trans.__('log-prob when sampled'), told(number('logprob'), value => fixed(value, 4))],
        [trans.__('log-prob in the update'), told(number('new_logprob'), value => fixed(value, 4))],
        [trans.__('ratio'), told(number('ratio'), value => fixed(value, 4))],
        [trans.__('clipped'), told(clipped, value => (value > 0 ? trans.__('yes') : trans.__('no')))],
        [trans.__('entropy'), told(number('entropy'), value => trans.__('%1 nats', fixed(value, 3)))],
        [trans.__('version'), told(number('version'), value => `v${integer(value)}`)],
        [trans.__('advantage'), advantage === null ? missing : signed(advantage)],
        [trans.__('share of |loss|'), told(tokens.lossShare(token), value => percent(value))]
      ]
    : [];
  return (
    <section className="ll-token" data-testid="ll-token" aria-live="polite">
      <p className="ll-token-head">
        <code className="ll-token-text" dir="auto">
          {tokenLabel(tokens.texts[token] ?? '', tokens.ids[token])}
        </code>
        <span>
          {trans.__('token %1', integer(token))} · {trans.__('id %1', tokens.ids[token])} · {roleWords(role, sampled)} ·{' '}
          {trans.__('call %1', callLabel(tokens.callOf(token)))}
        </span>
      </p>
      {!sampled && <p className="ll-dim">{trans.__('The model read it: it has no log-prob and does not train.')}</p>}
      <dl>
        {facts.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd className={value === missing ? 'll-dim' : ''}>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function roleWords(role: string, sampled: boolean): string {
  return sampled && role !== 'sampled' ? `masked: ${words(role)}` : words(role);
}
