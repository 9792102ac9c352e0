/** What stands between a call and the one before it: a break, what the harness changed, what the gateway did. */

import { integer, words } from '../format';
import { visible, visibleLine } from '../text';
import type { DiffPart, IBreakDetail, IDifference, IGatewayChanges } from '../wireRollout';
import { TextBlock } from './textBlock';
import { useView } from './view';

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
      {(item.before || item.after) && item.cause !== 'new_thread' && (
        <dl>
          <dt>{trans.__('sample')}</dt>
          <dd>
            <TextBlock code text={item.before} lines={3} characters={240} />
          </dd>
          <dt>{trans.__('prompt')}</dt>
          <dd>
            <TextBlock code text={item.after} lines={3} characters={240} />
          </dd>
        </dl>
      )}
    </div>
  );
}

function Diff({ parts }: { parts: readonly DiffPart[] }): JSX.Element {
  return (
    <pre className="ll-diff" dir="auto">
      {parts.map(([kind, said], i) => {
        const shown = visible(said);
        // A change that is only white space could not be seen otherwise.
        const marked = /^\s+$/.test(said) ? shown.replace(/ /g, '·').replace(/\n/g, '↵\n').replace(/\t/g, '⇥') : shown;
        return kind === '=' ? (
          <span key={i}>{shown}</span>
        ) : kind === '-' ? (
          <del key={i}>{marked}</del>
        ) : (
          <ins key={i}>{marked}</ins>
        );
      })}
    </pre>
  );
}

/** The difference to the thread's previous call, where it did not only go on. */
export function DifferenceNote({ difference }: { difference: IDifference }): JSX.Element {
  const { trans } = useView();
  const { previous, gone, changed, toolsGone, toolsNew } = difference;
  const names = (tools: readonly string[]): string => tools.map(name => visibleLine(name, 40)).join(', ');
  return (
    <details className="ll-difference" data-testid="ll-difference" open={changed.length > 0 && changed.length <= 2}>
      <summary>
        {trans.__('Since call %1 the harness', previous)}{' '}
        {[
          gone > 0 && trans._n('left out %2 message', 'left out %2 messages', gone, integer(gone)),
          changed.length > 0 &&
            trans._n('rewrote %2 message', 'rewrote %2 messages', changed.length, integer(changed.length)),
          toolsGone.length > 0 &&
            trans._n('took away %2 tool', 'took away %2 tools', toolsGone.length, toolsGone.length),
          toolsNew.length > 0 && trans._n('added %2 tool', 'added %2 tools', toolsNew.length, toolsNew.length)
        ]
          .filter(Boolean)
          .join(', ')}
      </summary>
      {toolsGone.length > 0 && (
        <p>
          <del>{names(toolsGone)}</del>
        </p>
      )}
      {toolsNew.length > 0 && (
        <p>
          <ins>{names(toolsNew)}</ins>
        </p>
      )}
      {changed.map(({ role, parts }, i) => (
        <div key={i}>
          <h3>{words(role)}</h3>
          <Diff parts={parts} />
        </div>
      ))}
    </details>
  );
}

/** What the gateway did between the harness and the model; nothing where it did nothing. */
export function GatewayNote({ gateway }: { gateway: IGatewayChanges }): JSX.Element | null {
  const { trans } = useView();
  const { sampling, extra, kept, left } = gateway;
  const facts: string[] = [
    ...sampling.map(([name, asked, used]) =>
      used === ''
        ? trans.__('%1 %2 is the run’s to decide', words(name), visibleLine(asked, 24))
        : trans.__('%1 %2 became %3', words(name), visibleLine(asked, 24), visibleLine(used, 24))
    ),
    kept > 0 ? trans._n('put %2 reply back as sampled', 'put %2 replies back as sampled', kept, integer(kept)) : '',
    left.length > 0
      ? trans.__('left the reply of call %1 as rendered: it reads otherwise now', left.map(integer).join(', '))
      : ''
  ].filter(Boolean);
  if (facts.length === 0 && extra.length === 0) {
    return null;
  }
  const unread = extra.map(name => visibleLine(name, 40)).join(', ');
  return (
    <p className="ll-gateway" data-testid="ll-gateway">
      <b>{trans.__('gateway')}</b> {facts.join(' · ')}
      {extra.length > 0 && (
        <span title={unread}>
          {facts.length > 0 && ' · '}
          {trans._n('kept %2 field unread', 'kept %2 fields unread', extra.length, integer(extra.length))}
        </span>
      )}
    </p>
  );
}
