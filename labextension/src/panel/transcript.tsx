/** The conversation as the harness saw it: threads indented under what began them, call by call. */

import { useEffect, useMemo, useRef, useState } from 'react';

import { clock, integer } from '../format';
import { callsBefore } from '../tree/threads';
import { visibleLine } from '../text';
import type { ICallDetail, IMessage, IRolloutDetail, ITampering } from '../wireRollout';
import { CallHead } from './callHead';
import { BreakNote, DifferenceNote, GatewayNote } from './callNotes';
import { IToolResult, pairResults, Speech } from './speech';
import { TextBlock } from './textBlock';
import { useView } from './view';

/** Calls that are shown at once. */
const SHOWN = 100;
/** Earlier replies that an assistant message is compared with. */
const LOOK_BACK = 200;
const DEEPEST = 4;

function sameSpeech(a: IMessage, b: IMessage): boolean {
  return (
    a.content.trim() === b.content.trim() &&
    a.toolCalls.length === b.toolCalls.length &&
    a.toolCalls.every((tool, i) => tool.name === b.toolCalls[i].name && tool.arguments === b.toolCalls[i].arguments)
  );
}

/** The new messages of a call that are worth showing: neither a result shown with its tool, nor an echo of a reply. */
export function newMessages(
  call: ICallDetail,
  before: readonly ICallDetail[],
  results: ReadonlyMap<string, IToolResult>
): readonly IMessage[] {
  return call.messages.filter(message => {
    if (message.role === 'tool') {
      return results.get(message.toolCallId)?.message !== message;
    }
    return message.role !== 'assistant' || !before.some(earlier => sameSpeech(earlier.reply, message));
  });
}

/** How deep the thread of every call lies below the first one. */
export function depths(calls: readonly ICallDetail[]): readonly number[] {
  const before = callsBefore(calls);
  const found: number[] = [];
  calls.forEach((call, place) => {
    const parent = before[place];
    found.push(parent < 0 ? 0 : found[parent] + (calls[parent].thread === call.thread ? 0 : 1));
  });
  return found;
}

interface ICallProps {
  readonly detail: IRolloutDetail;
  readonly place: number;
  readonly depth: number;
  readonly results: ReadonlyMap<string, IToolResult>;
}

function Call({ detail, place, depth, results }: ICallProps): JSX.Element {
  const { source, trans } = useView();
  const call = detail.calls[place];
  const cut = detail.breaks.find(item => item.callId === call.id);
  const before = detail.calls.slice(Math.max(0, place - LOOK_BACK), place);
  return (
    <article
      className={`ll-call ${depth > 0 ? 'll-mod-sub' : ''} ${call.delivered ? '' : 'll-mod-lost'}`}
      style={depth > 0 ? { marginInlineStart: 20 * Math.min(depth, DEEPEST) } : undefined}
      data-call-id={call.id}
      data-kind={call.kind}
      data-depth={depth}
      aria-current={source.selection.current.call === call.id ? 'true' : undefined}
    >
      <CallHead call={call} />
      {cut && <BreakNote item={cut} />}
      {call.difference && <DifferenceNote difference={call.difference} />}
      <GatewayNote gateway={call.gateway} />
      {newMessages(call, before, results).map((message, i) => (
        <Speech
          key={i}
          message={message}
          results={results}
          label={message.role === 'assistant' ? trans.__('assistant, as sent back') : undefined}
        />
      ))}
      {call.error ? (
        <div className="ll-speech ll-role-error">
          <div className="ll-role">{trans.__('error')}</div>
          <div className="ll-said">
            <TextBlock code text={call.error} />
          </div>
        </div>
      ) : (
        <Speech message={call.reply} results={results} />
      )}
    </article>
  );
}

/** What an agent tried with its key beyond calling the model. */
function Tampering({ tried }: { tried: readonly ITampering[] }): JSX.Element | null {
  const { trans } = useView();
  if (tried.length === 0) {
    return null;
  }
  return (
    <section className="ll-tamper" data-testid="ll-tamper" aria-label={trans.__('Tampering')}>
      <h2>{trans.__('Tampering')}</h2>
      <ul>
        {tried.map(({ at, message }, i) => (
          <li key={i}>
            {visibleLine(message, 400)} <span className="ll-dim">{at === null ? '' : clock(at)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface IMoreProps {
  readonly calls: number;
  readonly label: string;
  readonly onShow: () => void;
}

function More({ calls, label, onShow }: IMoreProps): JSX.Element | null {
  return calls > 0 ? (
    <button type="button" className="ll-link ll-more" onClick={onShow}>
      {label}
    </button>
  ) : null;
}

interface IPlaceProps {
  readonly start: number;
  readonly stop: number;
  readonly total: number;
  readonly onFirst: () => void;
  readonly onLatest: () => void;
}

/** Which of many calls are shown, and the way to either end. */
function Place({ start, stop, total, onFirst, onLatest }: IPlaceProps): JSX.Element | null {
  const { trans } = useView();
  return total > SHOWN ? (
    <p className="ll-place" data-testid="ll-place">
      <span>{trans.__('Calls %1 to %2 of %3', integer(start + 1), integer(stop), integer(total))}</span>
      <button type="button" className="ll-link" onClick={onFirst}>
        {trans.__('First')}
      </button>
      <button type="button" className="ll-link" onClick={onLatest}>
        {trans.__('Latest')}
      </button>
    </p>
  ) : null;
}

export function Transcript({ detail }: { detail: IRolloutDetail }): JSX.Element {
  const { source, trans } = useView();
  const { calls, rollout } = detail;
  const live = rollout.state === 'queuing' || rollout.state === 'running';
  // `null`: the latest calls, whatever is added. What goes on is opened there, what is over at its beginning.
  const [from, setFrom] = useState<number | null>(() => (live && calls.length > SHOWN ? null : 0));
  const [jumps, setJumps] = useState(0);
  const root = useRef<HTMLElement>(null);
  const results = useMemo(() => pairResults(calls), [calls]);
  const depth = useMemo(() => depths(calls), [calls]);
  const selected = source.selection.current.call;
  const start = Math.min(from ?? Infinity, Math.max(0, calls.length - SHOWN));
  const stop = Math.min(calls.length, start + SHOWN);

  useEffect(() => {
    const place = calls.findIndex(call => call.id === selected);
    if (place >= 0 && (place < start || place >= stop)) {
      setFrom(Math.max(0, place - SHOWN / 2));
    }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only when the selection moves
  }, [selected]);
  useEffect(() => {
    root.current?.querySelector('[aria-current]')?.scrollIntoView?.({ block: 'nearest' });
  }, [selected, start]);
  useEffect(() => {
    if (from === null && selected === undefined) {
      root.current?.querySelector('[data-call-id]:last-of-type')?.scrollIntoView?.({ block: 'end' });
    }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- when it is opened, and when one jumps there
  }, [jumps]);
  const jump = (to: number | null): void => {
    source.selection.set({ ...source.selection.current, call: undefined, token: undefined });
    setFrom(to);
    setJumps(jumps + 1);
  };

  return (
    <section ref={root} className="ll-transcript" data-testid="ll-transcript" aria-label={trans.__('Transcript')}>
      <Tampering tried={detail.tampering} />
      {calls.length === 0 && (
        <p className="ll-dim">{live ? trans.__('No model call yet.') : trans.__('The agent made no model call.')}</p>
      )}
      <Place {...{ start, stop }} total={calls.length} onFirst={() => jump(0)} onLatest={() => jump(null)} />
      <More
        calls={start}
        label={trans.__('Show earlier calls (%1)', integer(start))}
        onShow={() => setFrom(Math.max(0, start - SHOWN))}
      />
      {calls.slice(start, stop).map((call, i) => (
        <Call key={call.id} {...{ detail, results }} place={start + i} depth={depth[start + i]} />
      ))}
      <More
        calls={calls.length - stop}
        label={trans.__('Show later calls (%1)', integer(calls.length - stop))}
        onShow={() => setFrom(stop)}
      />
    </section>
  );
}
