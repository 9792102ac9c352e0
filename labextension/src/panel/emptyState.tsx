/** Before there is anything to show: what this is, how to begin, and whether anyone is listening. */

import { PathExt } from '@jupyterlab/coreutils';

import { labIcon } from '../icons';
import { visibleLine } from '../text';
import type { SourceStatus } from '../tokens';
import { useView } from './view';

const SNIPPET = `import lightning_lab as ll

lab = ll.Lab(policy=ll.Policy.torch("quickstart"))
run = ll.Trainer(
    lab, harness, tasks, grader, n=8, groups=4
).fit(steps=100)`;

function Listening({ status }: { status: SourceStatus }): JSX.Element {
  const { source, trans } = useView();
  const says: Partial<Record<SourceStatus, string>> = {
    connecting: trans.__('Connecting to the kernel…'),
    waiting: trans.__('Connected. This page fills the moment a lab starts in this kernel.'),
    disconnected: trans.__('The Jupyter server does not answer.'),
    gone: trans.__('The kernel has ended. Start it again and run the cell that makes the lab.')
  };
  return (
    <p className={`ll-listening ll-status-${status}`} role="status" data-testid="ll-listening">
      <i className="ll-pulse" aria-hidden="true" />
      {says[status] ?? ''}
      {status === 'disconnected' && (
        <button type="button" className="ll-link" onClick={() => source.reconnect()}>
          {trans.__('Reconnect')}
        </button>
      )}
    </p>
  );
}

/** A file whose run is not there yet, or never will be. */
function FileState({ path }: { path: string }): JSX.Element {
  const { source, trans } = useView();
  const failed = source.status === 'disconnected';
  return (
    <div className="ll-empty" data-testid="ll-empty">
      <labIcon.react tag="span" className="ll-empty-icon" width="40px" height="40px" />
      <h1>{visibleLine(PathExt.basename(path), 80)}</h1>
      {failed ? (
        <>
          <p className="ll-notice ll-mod-error" role="alert">
            {visibleLine(source.problem, 400)}
          </p>
          <button type="button" className="ll-button" onClick={() => source.reconnect()}>
            {trans.__('Read it again')}
          </button>
        </>
      ) : (
        <p className="ll-listening ll-status-connecting" role="status" data-testid="ll-listening">
          <i className="ll-pulse" aria-hidden="true" />
          {trans.__('Reading the run…')}
        </p>
      )}
    </div>
  );
}

export function EmptyState(): JSX.Element {
  const { source, trans } = useView();
  if (source.path !== undefined) {
    return <FileState path={source.path} />;
  }
  return (
    <div className="ll-empty" data-testid="ll-empty">
      <labIcon.react tag="span" className="ll-empty-icon" width="40px" height="40px" />
      <h1>{trans.__('No lab in this kernel yet')}</h1>
      <p>{trans.__('Point an agent at a lab and every rollout, model call and reward shows here while it happens.')}</p>
      <pre className="ll-snippet">
        <code>{SNIPPET}</code>
      </pre>
      <Listening status={source.status} />
      {source.problem && <p className="ll-notice ll-mod-warn">{source.problem}</p>}
    </div>
  );
}
