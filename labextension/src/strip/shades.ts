/** What colours a token: a hue of the theme and how strong it is. Pure. */

import { SampleTokens, TokenNumber } from './sampleTokens';

export const MODES = ['role', 'logprob', 'entropy', 'ratio', 'kl', 'clip', 'version', 'advantage', 'loss'] as const;
export type Mode = (typeof MODES)[number];

/** Colourings that a finding may be about; the lab knows the token that it is mostly about. */
export type Shade = 'kl' | 'ratio' | 'clip';

export function asShade(word: string): Shade | undefined {
  return word === 'kl' || word === 'ratio' || word === 'clip' ? word : undefined;
}

/** Names of hues; `paint.ts` reads their colours from the theme. */
export type Hue = 'none' | 'prompt' | 'observation' | 'sampled' | 'masked' | 'low' | 'high' | 'scale';

export interface IShade {
  readonly hue: Hue;
  /** 0 … 1 */
  readonly strength: number;
}

const NONE: IShade = { hue: 'none', strength: 0 };

/** Log-probs below this are drawn at full strength. */
const RARE = -4;
/** Ratios beyond this factor from 1 are drawn at full strength. */
const FAR = Math.log(1.5);

const COLUMN_OF: Partial<Record<Mode, TokenNumber>> = {
  logprob: 'logprob',
  entropy: 'entropy',
  ratio: 'ratio',
  kl: 'ratio',
  clip: 'clipped',
  version: 'version',
  loss: 'loss'
};

/** Whether the tokens carry what a mode shows. */
export function isComputed(tokens: SampleTokens, mode: Mode): boolean {
  const column = COLUMN_OF[mode];
  return column === undefined || tokens.has(column);
}

/** A token's number in a mode; NaN where it has none. Its part of the KL is r − 1 − ln r of its ratio r. */
function valueOf(tokens: SampleTokens, mode: Mode, token: number): number {
  const column = COLUMN_OF[mode];
  const value = column ? tokens.number(column, token) : NaN;
  return mode === 'kl' ? value - 1 - Math.log(Math.max(value, 1e-6)) : value;
}

/** The smallest and largest number in a mode, or `null`. */
export function extent(tokens: SampleTokens, mode: Mode): readonly [number, number] | null {
  if (!(mode in COLUMN_OF)) {
    return null;
  }
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < tokens.loaded; i++) {
    const value = valueOf(tokens, mode, i);
    if (value < low) {
      low = value;
    }
    if (value > high) {
      high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** @param advantage - the rollout's; the same for all its trained tokens. */
export function shader(tokens: SampleTokens, mode: Mode, advantage: number | null): (token: number) => IShade {
  const [low, high] = extent(tokens, mode) ?? [0, 0];
  const top = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return token => {
    const role = tokens.role(token);
    if (mode === 'role') {
      return tokens.isMasked(token) ? { hue: 'masked', strength: 1 } : byRole(role);
    }
    if (role !== 'sampled') {
      return NONE;
    }
    if (mode === 'advantage') {
      return advantage ? { hue: advantage > 0 ? 'high' : 'low', strength: 0.8 } : NONE;
    }
    const value = valueOf(tokens, mode, token);
    return Number.isNaN(value) ? NONE : shadeOf(mode, value, low, high, top);
  };
}

function byRole(role: string): IShade {
  return role === 'sampled' || role === 'observation' || role === 'prompt' ? { hue: role, strength: 1 } : NONE;
}

function shadeOf(mode: Mode, value: number, low: number, high: number, top: number): IShade {
  switch (mode) {
    case 'logprob':
      return { hue: 'low', strength: Math.sqrt(Math.min(1, Math.max(0, value / RARE))) };
    case 'entropy':
      return { hue: 'scale', strength: value / top };
    case 'ratio': {
      const far = Math.log(Math.max(value, 1e-6)) / FAR;
      return { hue: far > 0 ? 'high' : 'low', strength: Math.min(1, Math.abs(far)) };
    }
    case 'kl':
      return { hue: 'low', strength: Math.sqrt(value / top) };
    case 'clip':
      return value > 0 ? { hue: 'low', strength: 1 } : { hue: 'high', strength: 0.2 };
    case 'version':
      return { hue: 'scale', strength: high > low ? 0.15 + 0.85 * ((high - value) / (high - low)) : 0.3 };
    case 'loss':
      return { hue: value > 0 ? 'low' : 'high', strength: Math.sqrt(Math.abs(value) / top) };
    default:
      return NONE;
  }
}
