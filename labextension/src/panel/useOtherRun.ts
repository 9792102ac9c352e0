/** The runs that there are to compare with, and the one that was picked. */

import { PathExt } from '@jupyterlab/coreutils';
import { useEffect, useState } from 'react';

import { decodeRuns } from '../decodeAnswers';
import { clock, integer, shortId, words } from '../format';
import { OtherRun, whenRead } from '../otherRun';
import type { IRunSource } from '../tokens';
import { visibleLine } from '../text';
import { messageOf } from './useAnswer';
import { useView } from './view';

export interface IChoice {
  readonly label: string;
  open(): Promise<IRunSource>;
}

export interface IOtherRunState {
  readonly choices: readonly IChoice[];
  /** `null` while the run on show is compared with itself. */
  readonly other: IRunSource | null;
  readonly loading: boolean;
  readonly error: string;
  /** Place in `choices`, or -1 for the run on show. */
  readonly picked: number;
  pick(place: number): void;
}

export function useOtherRun(): IOtherRunState {
  const { source, files, trans } = useView();
  const shown = source.model.run?.id ?? '';
  const [choices, setChoices] = useState<readonly IChoice[]>([]);
  const [picked, setPicked] = useState(-1);
  const [state, setState] = useState<{ other: IRunSource | null; error: string }>({ other: null, error: '' });

  useEffect(() => {
    let current = true;
    const ofLab = source.ask('runs', {}).then(({ result }) =>
      decodeRuns(result)
        .filter(run => run.id !== shown)
        .map(run => ({
          label: trans.__(
            'run %1 · %2 · %3 rollouts · %4',
            shortId(run.id),
            words(run.state),
            integer(run.rollouts),
            clock(run.createdAt)
          ),
          open: async () => {
            const other = new OtherRun(source, run.id);
            await other.read();
            return other;
          }
        }))
    );
    const ofFolder = (files?.list() ?? Promise.resolve([])).then(paths =>
      paths.map(path => ({ label: visibleLine(PathExt.basename(path), 80), open: () => whenRead(files!.open(path)) }))
    );
    // Each kind is offered as it comes; a kernel that cannot say which runs it has leaves the files.
    const offer = (made: readonly IChoice[]): void => {
      if (current) {
        setChoices(known => [...known, ...made]);
      }
    };
    setChoices([]);
    setPicked(-1);
    for (const found of [ofLab, ofFolder]) {
      found.then(offer, () => undefined);
    }
    return () => {
      current = false;
    };
  }, [source, files, shown, trans]);

  useEffect(() => {
    setState({ other: null, error: '' });
    if (picked < 0) {
      return;
    }
    let current = true;
    let opened: IRunSource | null = null;
    choices[picked].open().then(
      other => {
        opened = other;
        if (current) {
          setState({ other, error: '' });
        } else {
          other.dispose();
        }
      },
      (reason: unknown) => current && setState({ other: null, error: messageOf(reason) })
    );
    return () => {
      current = false;
      opened?.dispose();
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- choices are only ever appended to
  }, [picked]);

  return { ...state, choices, loading: picked >= 0 && !state.other && !state.error, picked, pick: setPicked };
}
