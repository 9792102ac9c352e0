/** One message as it was said, its tools with their results. */

import { visibleLine } from '../text';
import type { ICallDetail, IMessage, IToolCall } from '../wireRollout';
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

export interface ISpeechProps {
  readonly message: IMessage;
  readonly results: ReadonlyMap<string, IToolResult>;
  /** Instead of the role, where the role alone would mislead. */
  readonly label?: string;
}

export function Speech({ message, results, label }: ISpeechProps): JSX.Element {
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
