/** Fetch an answer and decode it; again when `stamp` changes, only while `active`. */

import type { JSONObject } from '@lumino/coreutils';
import { useEffect, useState } from 'react';

import type { IAnswer } from '../request';
import type { IRunSource } from '../tokens';

export interface IAnswerState<T> {
  readonly value: T | null;
  readonly error: string;
}

export function messageOf(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}

export function useAnswer<T>(
  source: IRunSource,
  method: string,
  params: JSONObject,
  stamp: string,
  active: boolean,
  decode: (answer: IAnswer) => T
): IAnswerState<T> {
  const key = `${method} ${JSON.stringify(params)}`;
  const [state, setState] = useState<IAnswerState<T> & { key: string }>({ key, value: null, error: '' });
  useEffect(() => {
    if (!active) {
      return;
    }
    let current = true;
    source.ask(method, params).then(
      answer => current && setState({ key, value: decode(answer), error: '' }),
      (reason: unknown) =>
        // A failed refresh keeps what is already legible.
        current && setState(old => ({ key, value: old.key === key ? old.value : null, error: messageOf(reason) }))
    );
    return () => {
      current = false;
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- `key` stands for method and params
  }, [source, key, stamp, active]);
  return state.key === key ? state : { value: null, error: '' };
}
