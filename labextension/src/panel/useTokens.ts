/** Fetch a sample's tokens part by part; what has arrived is drawn at once. */

import { useEffect, useState } from 'react';

import { decodeTokens } from '../decodeAnswers';
import { SampleTokens } from '../strip/sampleTokens';
import type { IRunSource } from '../tokens';
import { messageOf } from './useAnswer';

export interface ITokensState {
  readonly tokens: SampleTokens | null;
  /** Grows with every part. */
  readonly loaded: number;
  readonly error: string;
}

const NOTHING: ITokensState = { tokens: null, loaded: 0, error: '' };

export async function fetchTokens(
  source: IRunSource,
  id: string,
  sample: number,
  onPart: (tokens: SampleTokens) => boolean
): Promise<void> {
  let tokens: SampleTokens | null = null;
  do {
    const { result, buffers } = await source.ask('tokens', { id, sample, from: tokens?.loaded ?? 0 });
    const part = decodeTokens(result, buffers);
    tokens ??= new SampleTokens(part.tokens);
    const before = tokens.loaded;
    tokens.append(part);
    if (!onPart(tokens) || (tokens.loaded === before && !tokens.complete)) {
      return;
    }
  } while (!tokens.complete);
}

/** @param stamp - changes when the sample may have. */
export function useTokens(
  source: IRunSource,
  id: string,
  sample: number,
  stamp: string,
  active: boolean
): ITokensState {
  const key = `${id} ${sample} ${stamp}`;
  const [state, setState] = useState({ key: '', ...NOTHING });
  useEffect(() => {
    if (!active || (state.key === key && state.tokens?.complete)) {
      return;
    }
    let current = true;
    fetchTokens(source, id, sample, tokens => {
      if (current) {
        setState({ key, tokens, loaded: tokens.loaded, error: '' });
      }
      return current;
    }).catch(
      (reason: unknown) =>
        // What has arrived stays.
        current && setState(old => ({ ...(old.key === key ? old : NOTHING), key, error: messageOf(reason) }))
    );
    return () => {
      current = false;
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- a part that arrives does not begin anew
  }, [source, key, active]);
  return state.key === key ? state : NOTHING;
}
