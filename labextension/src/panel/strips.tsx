/** The right of the Rollout page: its samples token by token, and where calls broke off. */

import { useEffect, useMemo, useRef, useState } from 'react';

import { decodePeak } from '../decodeAnswers';
import { fixed, integer, words } from '../format';
import { extent, isComputed, Mode, MODES, Shade } from '../strip/shades';
import type { SampleTokens } from '../strip/sampleTokens';
import type { IRolloutDetail, ISampleDetail } from '../wireRollout';
import { IPin } from './overview';
import { Sides } from './sides';
import { TokenCard } from './tokenCard';
import { TokenFlow } from './tokenFlow';
import { useAnswer } from './useAnswer';
import { useTokens } from './useTokens';
import { useView } from './view';

const MODE_LABELS: Readonly<Record<Mode, string>> = {
  role: 'Role',
  logprob: 'Log-prob',
  entropy: 'Entropy',
  ratio: 'Ratio',
  kl: 'KL',
  clip: 'Clip',
  version: 'Version',
  advantage: 'Advantage',
  loss: 'Loss'
};

/** The breaks that left a sample, as pins on its tokens. */
export function pinsOf(detail: IRolloutDetail, sample: ISampleDetail | undefined): readonly IPin[] {
  const pins: IPin[] = [];
  detail.breaks.forEach((item, place) => {
    if (sample && item.index !== null && sample.calls.includes(item.previousCallId) && item.index <= sample.tokens) {
      pins.push({ token: item.index, place });
    }
  });
  return pins;
}

function Legend({ tokens, mode }: { tokens: SampleTokens | null; mode: Mode }): JSX.Element {
  const { trans } = useView();
  if (mode === 'role') {
    return (
      <p className="ll-legend-row">
        {['prompt', 'observation', 'sampled', 'masked'].map(role => (
          <span key={role}>
            <i className={`ll-swatch-box ll-role-${role}`} aria-hidden="true" /> {trans.__(role)}
          </span>
        ))}
      </p>
    );
  }
  if (tokens && !isComputed(tokens, mode)) {
    return <p className="ll-legend-row ll-dim">{trans.__('Not computed for this sample.')}</p>;
  }
  const says: Readonly<Record<Mode, string>> = {
    role: '',
    logprob: trans.__('redder: the sampler thought it less likely'),
    entropy: trans.__('stronger: more choices were open, in nats'),
    ratio: trans.__('green above 1, red below: new policy over old'),
    kl: trans.__('redder: more of the KL to the sampler'),
    clip: trans.__('red: clipped, adds no gradient'),
    version: trans.__('stronger: sampled by an older policy'),
    advantage: trans.__('green pushes up, red pushes down'),
    loss: trans.__('stronger: a larger part of the loss')
  };
  const range = tokens && mode !== 'clip' ? extent(tokens, mode) : null;
  const digits = mode === 'version' ? 0 : 3;
  return (
    <p className="ll-legend-row ll-dim">
      {says[mode]}
      {range && <span>{trans.__('%1 to %2', fixed(range[0], digits), fixed(range[1], digits))}</span>}
    </p>
  );
}

/** The sample that trains most: what one wants to see first. */
function fullest(samples: readonly ISampleDetail[]): number {
  return samples.reduce((best, sample, i) => (sample.trained > samples[best].trained ? i : best), 0);
}

interface ISampleListProps {
  readonly detail: IRolloutDetail;
  readonly shown: number;
  readonly ordinal: (callId: string) => string;
  readonly onShow: (sample: number) => void;
}

function SampleList({ detail, shown, ordinal, onShow }: ISampleListProps): JSX.Element {
  const { trans } = useView();
  const longest = Math.max(1, ...detail.samples.map(sample => sample.tokens));
  return (
    <ol className="ll-samples">
      {detail.samples.map((sample, i) => (
        <li key={i}>
          <button type="button" aria-pressed={i === shown} onClick={() => onShow(i)} data-testid="ll-sample">
            <span>{trans.__('Sample %1', i)}</span>
            <span className="ll-dim">
              {trans._n('call %2', 'calls %2', sample.calls.length, sample.calls.map(ordinal).join(', '))}
            </span>
            <span className="ll-sample-bar" aria-hidden="true">
              <i style={{ width: `${(sample.tokens / longest) * 100}%` }}>
                <b style={{ width: `${sample.tokens > 0 ? (sample.trained / sample.tokens) * 100 : 0}%` }} />
              </i>
            </span>
            <span className="ll-num">
              {trans.__('%1 of %2 train', integer(sample.trained), integer(sample.tokens))}
            </span>
          </button>
          {Object.entries(sample.masked).map(([reason, n]) => (
            <p key={reason} className="ll-dim ll-sample-note">
              {trans.__('%1 sampled tokens masked: %2', integer(n), words(reason))}
            </p>
          ))}
        </li>
      ))}
    </ol>
  );
}

interface IFlowProps {
  readonly tokens: SampleTokens | null;
  readonly loaded: number;
  readonly mode: Mode;
  readonly advantage: number | null;
  readonly pins: readonly IPin[];
  readonly token: number;
  readonly zoom: number;
  readonly ordinal: (callId: string) => string;
  readonly onToken: (token: number) => void;
  readonly onPin: (place: number) => void;
}

function Flow(props: IFlowProps): JSX.Element {
  const { tokens, loaded, mode, advantage, pins, token, zoom, ordinal, onToken, onPin } = props;
  const { theme, trans } = useView();
  const host = useRef<HTMLDivElement>(null);
  const flow = useRef<TokenFlow | null>(null);
  const zoomed = useRef(zoom);
  const act = useRef({ onToken, onPin, ordinal });
  act.current = { onToken, onPin, ordinal };

  useEffect(() => {
    const made = new TokenFlow({
      label: trans.__('Tokens of the sample; arrow keys select one'),
      onToken: chosen => act.current.onToken(chosen),
      onPin: place => act.current.onPin(place),
      callLabel: id => act.current.ordinal(id)
    });
    flow.current = made;
    host.current?.append(made.node);
    return () => {
      flow.current = null;
      made.dispose();
    };
  }, [trans]);
  useEffect(() => {
    if (tokens) {
      flow.current?.show(tokens, mode, advantage, pins);
    }
  }, [tokens, loaded, mode, advantage, pins]);
  useEffect(() => {
    if (flow.current && flow.current.selected !== token) {
      flow.current.select(token);
    }
  }, [token, loaded]);
  useEffect(() => {
    flow.current?.zoom(zoom - zoomed.current);
    zoomed.current = zoom;
  }, [zoom]);
  useEffect(() => flow.current?.repaint(), [theme]);
  return <div className="ll-flow-host" ref={host} />;
}

export interface IStripsProps {
  readonly detail: IRolloutDetail;
  /** Changes whenever the samples may have. */
  readonly stamp: string;
  /** What to colour by at first; the token that stands out is selected. */
  readonly shade?: Shade;
}

export function Strips({ detail, stamp, shade }: IStripsProps): JSX.Element {
  const { source, trans, visible } = useView();
  const { rollout, samples, calls, breaks } = detail;
  const { call, token = -1 } = source.selection.current;
  const [chosen, setChosen] = useState(() => fullest(samples));
  const [mode, setMode] = useState<Mode>(shade ?? 'role');
  const [zoom, setZoom] = useState(0);
  const [open, setOpen] = useState<number | null>(null);
  const shown = Math.min(chosen, Math.max(0, samples.length - 1));
  const sample = samples[shown];
  const ordinals = useMemo(() => new Map(calls.map(item => [item.id, String(item.ordinal)])), [calls]);
  const ordinal = (id: string): string => ordinals.get(id) ?? '?';
  const stored = source.status === 'saved';
  const { tokens, loaded, error } = useTokens(source, rollout.id, shown, stamp, visible && !!sample);
  const { value: peak } = useAnswer(
    source,
    'peak',
    { id: rollout.id, by: shade ?? '' },
    '',
    visible && shade !== undefined,
    ({ result }) => decodePeak(result)
  );
  const pins = useMemo(() => pinsOf(detail, sample), [detail, sample]);

  useEffect(() => {
    // A call chosen in the transcript is shown in the sample where it trains.
    const holder = call === undefined ? -1 : samples.findIndex(item => item.calls.includes(call));
    if (holder >= 0 && !samples[shown]?.calls.includes(call as string)) {
      setChosen(holder);
    }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only when the selection moves
  }, [call]);
  useEffect(() => {
    const segment = token < 0 && tokens?.segments.find(item => item.callId === call);
    if (segment) {
      source.selection.set({ ...source.selection.current, token: segment.start });
    }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- as above, and when its tokens arrive
  }, [call, tokens]);

  useEffect(() => {
    if (peak) {
      setChosen(peak.sample);
      source.selection.set({ ...source.selection.current, call: peak.call, token: peak.token });
    }
  }, [source, peak]);

  const select = (chosenToken: number): void =>
    source.selection.set({
      ...source.selection.current,
      call: tokens?.callOf(chosenToken) || undefined,
      token: chosenToken
    });

  if (samples.length === 0) {
    return (
      <section className="ll-strips" data-testid="ll-samples">
        <h2>{trans.__('Samples')}</h2>
        <p className="ll-dim">
          {calls.length === 0
            ? trans.__('No sample without a call.')
            : trans.__('No call was delivered, so there is nothing to train on.')}
        </p>
      </section>
    );
  }
  return (
    <section className="ll-strips" data-testid="ll-samples" aria-label={trans.__('Samples, token by token')}>
      <h2>
        {trans.__('Samples')}{' '}
        <span className="ll-dim">
          {detail.trained
            ? trans.__('as they were trained on')
            : rollout.mode === 'train'
              ? trans.__('as they would be cut now')
              : trans.__('as they would be cut; %1 rollouts do not train', words(rollout.mode))}
        </span>
      </h2>
      <SampleList detail={detail} shown={shown} ordinal={ordinal} onShow={setChosen} />
      {breaks.length > 0 && (
        <div className="ll-pins" role="group" aria-label={trans.__('Breaks')}>
          {breaks.map((item, place) => (
            <button
              key={place}
              type="button"
              className="ll-pin"
              aria-expanded={open === place}
              data-testid="ll-pin"
              title={item.sentence}
              onClick={() => setOpen(open === place ? null : place)}
            >
              {trans.__('call %1', ordinal(item.callId))} <b>{words(item.cause)}</b>
            </button>
          ))}
        </div>
      )}
      {open !== null && breaks[open] && (
        <Sides id={rollout.id} place={open} cause={breaks[open].cause} stamp={stamp} onClose={() => setOpen(null)} />
      )}
      <div className="ll-strip-tools">
        <div className="ll-modes" role="radiogroup" aria-label={trans.__('Colour tokens by')}>
          {MODES.map(name => (
            <button key={name} type="button" role="radio" aria-checked={name === mode} onClick={() => setMode(name)}>
              {trans.__(MODE_LABELS[name])}
            </button>
          ))}
        </div>
        <span className="ll-zoom">
          <button type="button" aria-label={trans.__('Smaller letters')} onClick={() => setZoom(zoom - 1)}>
            −
          </button>
          <button type="button" aria-label={trans.__('Larger letters')} onClick={() => setZoom(zoom + 1)}>
            +
          </button>
        </span>
      </div>
      <Legend tokens={tokens} mode={mode} />
      {error && (
        <p className={`ll-notice ${stored ? 'll-mod-quiet' : 'll-mod-error'}`} role={stored ? 'status' : 'alert'}>
          {error}
        </p>
      )}
      <Flow
        {...{ tokens, loaded, mode, pins, token, zoom, ordinal }}
        advantage={rollout.advantage}
        onToken={select}
        onPin={setOpen}
      />
      {tokens && token >= 0 && token < tokens.loaded ? (
        <TokenCard tokens={tokens} token={token} callLabel={ordinal} advantage={rollout.advantage} />
      ) : (
        <p className="ll-dim">{trans.__('Select a token to see its numbers.')}</p>
      )}
    </section>
  );
}
