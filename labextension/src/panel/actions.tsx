/** Pause, resume, stop, cancel: always there; what cannot be done now says why. */

import { useEffect, useState } from 'react';

import type { RunModel } from '../model';
import type { ActionName, SourceStatus } from '../tokens';
import { useView } from './view';

type Reason = string;

/** Why an action cannot be taken now; empty when it can. Only what the panel knows for sure: the lab decides. */
export function unavailable(name: ActionName, model: RunModel, status: SourceStatus): Reason {
  if (status !== 'live') {
    return 'The kernel is not connected.';
  }
  if (!model.labOpen) {
    return 'The lab is closed.';
  }
  if (name === 'pause') {
    return model.paused === true ? 'The lab is paused already.' : '';
  }
  if (name === 'resume') {
    return model.paused === false ? 'Nothing is paused.' : '';
  }
  if (model.run?.kind === 'single') {
    return 'No run is training; single rollouts are cancelled on their own page.';
  }
  return model.active ? '' : 'No run is active.';
}

/** Milliseconds in which a second click confirms the cancel. */
const CONFIRM_MS = 4000;

/** A second click within a few seconds is the confirmation. */
export function useConfirm(): [boolean, (asked: boolean) => void] {
  const [confirming, setConfirming] = useState(false);
  useEffect(() => {
    const timer = confirming ? setTimeout(() => setConfirming(false), CONFIRM_MS) : undefined;
    return () => clearTimeout(timer);
  }, [confirming]);
  return [confirming, setConfirming];
}

/** Cancel one rollout, from its page. */
export function CancelRollout({ id }: { id: string }): JSX.Element {
  const { source, trans } = useView();
  const [error, setError] = useState('');
  const [confirming, setConfirming] = useConfirm();
  const cancel = (): void => {
    setConfirming(!confirming);
    if (confirming) {
      setError('');
      source.act('cancel', id).catch((reason: Error) => setError(reason.message));
    }
  };
  return (
    <>
      <button type="button" className={`ll-button ${confirming ? 'll-mod-danger' : ''}`} onClick={cancel}>
        {confirming ? trans.__('Really cancel?') : trans.__('Cancel rollout')}
      </button>
      {error && (
        <span className="ll-action-error" role="alert">
          {error}
        </span>
      )}
    </>
  );
}

export function Actions(): JSX.Element {
  const { source, trans } = useView();
  const [error, setError] = useState('');
  const [busy, setBusy] = useState<ActionName | null>(null);
  const [confirming, setConfirming] = useConfirm();

  const act = async (name: ActionName): Promise<void> => {
    setError('');
    if (name === 'cancel' && !confirming) {
      setConfirming(true);
      return;
    }
    setConfirming(false);
    setBusy(name);
    try {
      await source.act(name);
    } catch (reason) {
      setError(reason instanceof Error ? reason.message : String(reason));
    } finally {
      setBusy(null);
    }
  };

  const buttons: readonly { name: ActionName; label: string; hint: string }[] = [
    { name: 'pause', label: trans.__('Pause'), hint: trans.__('Hold new model calls; nothing is lost') },
    { name: 'resume', label: trans.__('Resume'), hint: trans.__('Let held model calls go on') },
    { name: 'stop', label: trans.__('Stop after step'), hint: trans.__('End the run when this step is done') },
    {
      name: 'cancel',
      label: confirming ? trans.__('Really cancel?') : trans.__('Cancel'),
      hint: trans.__('End the run now; rollouts in flight are cancelled')
    }
  ];

  return (
    <div className="ll-actions" role="group" aria-label={trans.__('Run controls')}>
      {buttons.map(({ name, label, hint }) => {
        const reason = unavailable(name, source.model, source.status);
        const off = reason !== '' || busy !== null;
        return (
          <button
            key={name}
            type="button"
            className={`ll-button ${name === 'cancel' && confirming ? 'll-mod-danger' : ''}`}
            data-testid={`ll-action-${name}`}
            aria-disabled={off}
            title={reason ? trans.__(reason) : hint}
            onClick={() => !off && void act(name)}
          >
            {label}
          </button>
        );
      })}
      {error && (
        <p className="ll-action-error" role="alert">
          {error}
        </p>
      )}
    </div>
  );
}
