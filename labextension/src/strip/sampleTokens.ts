/** The tokens of one sample as columns; parts arrive in order and are appended. No DOM. */

import type { ISegment, ITokenPart } from '../wireRollout';

export const NUMBERS = ['logprob', 'version', 'new_logprob', 'entropy', 'ratio', 'clipped', 'loss'] as const;
export type TokenNumber = (typeof NUMBERS)[number];

export class SampleTokens {
  constructor(
    /** Tokens of the whole sample. */
    readonly total: number
  ) {
    this.ids = new Int32Array(total).fill(-1);
    this._roles = new Uint8Array(total);
    this._numbers = new Map();
  }

  readonly ids: Int32Array;
  readonly texts: string[] = [];
  readonly segments: ISegment[] = [];
  /** How many tokens have arrived. */
  loaded = 0;

  get complete(): boolean {
    return this.loaded >= this.total;
  }

  append(part: ITokenPart): void {
    const { from, rows, columns } = part;
    const stop = Math.min(this.total, from + rows);
    const ids = columns.get('id');
    const roles = columns.get('role');
    const texts = columns.get('text');
    for (let i = from; i < stop; i++) {
      this.ids[i] = ids?.kind === 'number' ? ids.values[i - from] : -1;
      this._roles[i] = roles?.kind === 'code' ? this._role(roles.values[roles.codes[i - from]] ?? '') : 0;
      this.texts[i] = (texts?.kind === 'text' ? texts.values[i - from] : '') ?? '';
    }
    for (const name of NUMBERS) {
      const column = columns.get(name);
      if (column?.kind === 'number') {
        this._write(name, column.values, from, stop);
      }
    }
    for (const segment of part.segments) {
      if (!this.segments.some(known => known.callId === segment.callId && known.start === segment.start)) {
        this.segments.push(segment);
      }
    }
    this.loaded = Math.max(this.loaded, stop);
  }

  /** `prompt`, `observation`, `sampled`, or the reason why a sampled token does not train. */
  role(token: number): string {
    return this._words[this._roles[token]] ?? '';
  }

  isMasked(token: number): boolean {
    return !['prompt', 'observation', 'sampled', ''].includes(this.role(token));
  }

  has(name: TokenNumber): boolean {
    return this._numbers.has(name);
  }

  /** NaN where there is no number. */
  number(name: TokenNumber, token: number): number {
    const value = this._numbers.get(name)?.[token] ?? NaN;
    return name === 'version' && value < 0 ? NaN : value;
  }

  /** The call that sampled a token, or that read it: the next one to reply. */
  callOf(token: number): string {
    return this.segments.find(segment => token < segment.stop)?.callId ?? '';
  }

  /** The token's part of the absolute loss of this sample; NaN where the loss was not computed. */
  lossShare(token: number): number {
    if (this._lossOf !== this.loaded) {
      this._lossOf = this.loaded;
      this._lossSum = 0;
      for (const value of this._numbers.get('loss') ?? []) {
        this._lossSum += Math.abs(value) || 0;
      }
    }
    return this._lossSum > 0 ? Math.abs(this.number('loss', token)) / this._lossSum : NaN;
  }

  private _write(name: TokenNumber, values: ArrayLike<number>, from: number, stop: number): void {
    let target = this._numbers.get(name);
    if (!target) {
      target = new Float32Array(this.total).fill(NaN);
      this._numbers.set(name, target);
    }
    for (let i = from; i < stop; i++) {
      target[i] = values[i - from];
    }
  }

  private _role(word: string): number {
    const known = this._words.indexOf(word);
    return known >= 0 ? known : this._words.push(word) - 1;
  }

  private readonly _roles: Uint8Array;
  private readonly _numbers: Map<TokenNumber, Float32Array>;
  private readonly _words: string[] = [''];
  private _lossSum = 0;
  private _lossOf = -1;
}
