/** The line above a call: which it is, and what it cost. */

import { duration, integer, words } from '../format';
import { visibleLine } from '../text';
import type { ICallDetail } from '../wireRollout';
import { useView } from './view';

function versionSpan(versions: readonly number[]): string {
  if (versions.length === 0) {
    return '';
  }
  const low = Math.min(...versions);
  const high = Math.max(...versions);
  return low === high ? `v${low}` : `v${low}–v${high}`;
}

export function CallHead({ call }: { call: ICallDetail }): JSX.Element {
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
      {call.kind !== 'main' && <span className={`ll-tag ll-kind-${words(call.kind)}`}>{words(call.kind)}</span>}
      {call.thread !== 'main' && call.thread !== call.kind && (
        <span className="ll-dim" title={visibleLine(call.thread, 80)}>
          {visibleLine(call.thread, 18)}
        </span>
      )}
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
