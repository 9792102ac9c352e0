/** What stands between the reader and fresh numbers, in one line each. */

import { clock, elapsed } from '../format';
import type { RunModel } from '../model';
import type { SourceStatus } from '../tokens';
import { TextBlock } from './textBlock';
import { useView } from './view';

/** Seconds without a frame after which the kernel counts as silent: key-frames come every 1 s, or 5 s while idle. */
const SILENT_ACTIVE_S = 3;
const SILENT_IDLE_S = 8;

/** Seconds of silence worth telling, or `null`. */
export function silentFor(model: RunModel, status: SourceStatus): number | null {
  const limit = model.active ? SILENT_ACTIVE_S : SILENT_IDLE_S;
  const { silence } = model;
  return status === 'live' && model.labOpen && silence !== null && silence > limit ? silence : null;
}

export function Notices(): JSX.Element | null {
  const { source, trans } = useView();
  const { model, status, problem } = source;
  const silent = silentFor(model, status);
  const { run } = model;
  return (
    <div className="ll-notices" aria-live="polite">
      {silent !== null && (
        <p className="ll-notice ll-mod-quiet" data-testid="ll-silent">
          {trans.__('Kernel silent %1', elapsed(silent))}
          <span className="ll-dim"> {trans.__('– a call holds the interpreter; the numbers below are its last')}</span>
        </p>
      )}
      {status === 'disconnected' && (
        <p className="ll-notice ll-mod-warn" data-testid="ll-disconnected">
          {trans.__('The Jupyter server does not answer. What you see is the last known state.')}
          <button className="ll-link" type="button" onClick={() => source.reconnect()}>
            {trans.__('Reconnect')}
          </button>
        </p>
      )}
      {status === 'gone' && (
        <p className="ll-notice ll-mod-warn">
          {trans.__('The kernel has ended. The run is stored on disk: open it with ll.load(…).')}
        </p>
      )}
      {status === 'live' && !model.labOpen && (
        <p className="ll-notice">
          {trans.__('The lab is closed. What you see is its last state; the run is stored on disk.')}
        </p>
      )}
      {status === 'saved' && (
        <p className="ll-notice ll-mod-quiet" data-testid="ll-saved">
          {trans.__('Stored with the notebook on %1; not live.', clock(model.kernelNow))}
        </p>
      )}
      {problem && <p className="ll-notice ll-mod-warn">{problem}</p>}
      {run && run.reason && run.state !== 'running' && (
        <div
          className={`ll-notice ${run.state === 'failed' ? 'll-mod-error' : 'll-mod-quiet'}`}
          data-testid="ll-reason"
        >
          <TextBlock text={run.reason} code={run.reason.includes('\n')} lines={8} />
        </div>
      )}
    </div>
  );
}
