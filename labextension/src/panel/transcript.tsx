/** The conversation as the harness saw it: what was said, which tools ran, what each call cost. */

import { duration, integer, words } from '../format';
import { visibleLine } from '../text';
import { IBreakDetail, ICallDetail, IMessage, IRolloutDetail, IToolCall } from '../wire';
import { TextBlock } from './textBlock';
import { useView } from './view';

/** A tool's result and the call that carried it to the model. */
export interface IToolResult {
  readonly message: IMessage;
  readonly ordinal: number;
}

/** Results by the id of the tool call they answer. */
export function pairResults(calls: readonly ICallDetail[]): ReadonlyMap<string, IToolResult> {
  const asked = new Set<string>();
  const results = new Map<string, IToolResult>();
  for (const call of calls) {
    for (const message of call.messages) {
      const id = message.toolCallId;
      if (message.role === 'tool' && asked.has(id) && !results.has(id)) {
        results.set(id, { message, ordinal: call.ordinal });
      }
    }
    call.reply.toolCalls.forEach(tool => tool.id && asked.add(tool.id));
  }
  return results;
}

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

/** Arguments as the model wrote them, laid out when they are JSON. */
export function prettyArguments(said: string): string {
  try {
    const parsed: unknown = JSON.parse(said);
    return typeof parsed === 'object' && parsed !== null ? JSON.stringify(parsed, null, 2) : said;
  } catch {
    return said;
  }
}

/** A short argument fits on the tool's own line. */
const INLINE_CHARACTERS = 72;

function Tool({ tool, result }: { tool: IToolCall; result: IToolResult | undefined }): JSX.Element {
  const { trans } = useView();
  const inline = tool.arguments.length <= INLINE_CHARACTERS && !tool.arguments.includes('\n');
  return (
    <div className="ll-tool">
      <div className="ll-tool-head">
        <span className="ll-tool-name">{visibleLine(tool.name) || trans.__('(unnamed tool)')}</span>
        {inline && <code>{visibleLine(tool.arguments)}</code>}
      </div>
      {!inline && <TextBlock code text={prettyArguments(tool.arguments)} lines={16} />}
      <div className="ll-tool-result">
        <span className="ll-tool-arrow" aria-hidden="true">
          ↳
        </span>
        {result ? (
          <TextBlock code text={result.message.content} lines={16} />
        ) : (
          <span className="ll-dim">{trans.__('no result reached the model')}</span>
        )}
      </div>
    </div>
  );
}

interface ISpeechProps {
  readonly message: IMessage;
  readonly results: ReadonlyMap<string, IToolResult>;
  /** Instead of the role, where the role alone would mislead. */
  readonly label?: string;
}

function Speech({ message, results, label }: ISpeechProps): JSX.Element {
  const { trans } = useView();
  const { role, content, reasoning, toolCalls, name } = message;
  const known = ['system', 'user', 'assistant', 'tool'].includes(role);
  const empty = !content && !reasoning && toolCalls.length === 0;
  return (
    <div className={`ll-speech ll-role-${known ? role : 'unknown'}`} data-role={role}>
      <div className="ll-role">
        {label ?? visibleLine(role, 24)}
        {name && <span className="ll-dim"> {visibleLine(name, 40)}</span>}
      </div>
      <div className="ll-said">
        {reasoning && (
          <details className="ll-reasoning" open>
            <summary>{trans.__('Reasoning')}</summary>
            <TextBlock text={reasoning} lines={20} />
          </details>
        )}
        {content && <TextBlock text={content} code={role === 'tool'} lines={role === 'system' ? 12 : 40} />}
        {toolCalls.map((tool, i) => (
          <Tool key={`${i}-${tool.id}`} tool={tool} result={results.get(tool.id)} />
        ))}
        {empty && <span className="ll-dim">{trans.__('(nothing)')}</span>}
      </div>
    </div>
  );
}

function versionSpan(versions: readonly number[]): string {
  if (versions.length === 0) {
    return '';
  }
  const low = Math.min(...versions);
  const high = Math.max(...versions);
  return low === high ? `v${low}` : `v${low}–v${high}`;
}

function CallHead({ call }: { call: ICallDetail }): JSX.Element {
  const { source, trans } = useView();
  const facts: string[] = [
    trans.__('%1 prompt + %2 sampled tokens', integer(call.promptTokens), integer(call.sampledTokens)),
    versionSpan(call.versions),
    duration(call.durationS),
    call.heldS && call.heldS >= 0.05 ? trans.__('held %1', duration(call.heldS)) : '',
    call.finishReason ? words(call.finishReason) : '',
    visibleLine(call.protocol, 24)
  ];
  return (
    <div className="ll-call-head">
      <h2>
        <button
          type="button"
          className="ll-call-name"
          title={trans.__('Show its tokens')}
          onClick={() => source.selection.set({ ...source.selection.current, call: call.id, token: undefined })}
        >
          {trans.__('Call %1', call.ordinal)}
        </button>
      </h2>
      {call.thread !== 'main' && <span className="ll-tag">{visibleLine(call.thread, 40)}</span>}
      {call.kind !== 'main' && <span className="ll-tag">{words(call.kind)}</span>}
      {!call.delivered && (
        <span
          className="ll-tag ll-mod-warn"
          title={trans.__('The client went away before the last byte; this call does not train.')}
        >
          {trans.__('undelivered')}
        </span>
      )}
      <span className="ll-call-facts">{facts.filter(Boolean).join(' · ')}</span>
    </div>
  );
}

/** What a break's cause means, in one sentence. */
const CAUSES: Readonly<Record<string, string>> = {
  retokenized: 'The same text came back as other token ids.',
  template: 'The chat template rendered the same messages differently.',
  reasoning_dropped: 'Earlier reasoning was left out of the prompt.',
  tool_args: 'Tool arguments came back serialised differently.',
  edited: 'The harness changed what the model had said.',
  tools_changed: 'The list of tools changed.',
  system_changed: 'The system prompt changed.',
  compacted: 'The history was replaced by a summary.',
  new_thread: 'Another conversation began.',
  unknown: 'The prompt does not extend the sample; the cause is not known.'
};

export function BreakNote({ item }: { item: IBreakDetail }): JSX.Element {
  const { trans } = useView();
  return (
    <div className="ll-break" data-cause={item.cause}>
      <p>
        <b>{words(item.cause)}</b> {item.sentence || trans.__(CAUSES[item.cause] ?? '')}{' '}
        <span className="ll-dim">
          {item.index === null || item.sentence ? '' : trans.__('First difference at token %1.', integer(item.index))}
        </span>
      </p>
      {(item.before || item.after) && (
        <dl>
          <dt>{trans.__('sample')}</dt>
          <dd>
            <TextBlock code text={item.before} lines={6} characters={600} />
          </dd>
          <dt>{trans.__('prompt')}</dt>
          <dd>
            <TextBlock code text={item.after} lines={6} characters={600} />
          </dd>
        </dl>
      )}
    </div>
  );
}

export function Transcript({ detail }: { detail: IRolloutDetail }): JSX.Element {
  const { source, trans } = useView();
  const { calls, breaks } = detail;
  const results = pairResults(calls);
  const breakOf = new Map(breaks.map(item => [item.callId, item]));
  return (
    <section className="ll-transcript" data-testid="ll-transcript" aria-label={trans.__('Transcript')}>
      {calls.length === 0 && (
        <p className="ll-dim">
          {detail.rollout.state === 'queuing' || detail.rollout.state === 'running'
            ? trans.__('No model call yet.')
            : trans.__('The agent made no model call.')}
        </p>
      )}
      {calls.map((call, position) => {
        const cut = breakOf.get(call.id);
        return (
          <article
            key={call.id}
            className={`ll-call ${call.thread === 'main' ? '' : 'll-mod-sub'} ${call.delivered ? '' : 'll-mod-lost'}`}
            data-call-id={call.id}
            data-kind={call.kind}
            aria-current={source.selection.current.call === call.id ? 'true' : undefined}
          >
            <CallHead call={call} />
            {cut && <BreakNote item={cut} />}
            {newMessages(call, calls.slice(0, position), results).map((message, i) => (
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
      })}
    </section>
  );
}
