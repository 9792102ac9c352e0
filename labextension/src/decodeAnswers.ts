/** Reading the answers to requests, purely; as untrusted as everything else on the wire. */

import { Buffer, decodeRows } from './decodeColumns';
import { decodeFrame, decodeRun } from './decodeFrame';
import { checkSchema, count, list, number, object, text } from './decodeJson';
import type { IFrame, IRowBlock, IRunInfo } from './wire';
import type { IBreakSide, IBreakSides, IGroupWeights, ISegment, ITokenPart } from './wireRollout';

/** Part of the rollout table: the answer to `rows`. */
export function decodeBlock(data: unknown, buffers: readonly Buffer[]): IRowBlock {
  return decodeRows(data, buffers);
}

export interface ITimelinePart {
  /** Step, from, to, in Unix seconds. */
  readonly updates: readonly (readonly number[])[];
  /** When model calls were held: from, to; NaN while it lasts. */
  readonly pauses: readonly (readonly number[])[];
  readonly columns: IRowBlock['columns'];
}

/** Calls over time: the answer to `timeline`. */
export function decodeTimeline(data: unknown, buffers: readonly Buffer[]): ITimelinePart {
  const spans = (value: unknown): number[][] => list(value).map(item => list(item).map(n => number(n) ?? NaN));
  const { updates, pauses } = object(data);
  return { updates: spans(updates), pauses: spans(pauses), columns: decodeRows(data, buffers).columns };
}

/** Part of a sample's tokens: the answer to `tokens`. Throws `SchemaMismatch`. */
export function decodeTokens(data: unknown, buffers: readonly Buffer[]): ITokenPart {
  const header = object(data);
  checkSchema(header);
  const block = decodeRows(header, buffers);
  const segments: ISegment[] = [];
  for (const item of list(header.segments)) {
    const [callId, start, stop] = list(item);
    segments.push({ callId: text(callId), start: count(start), stop: count(stop) });
  }
  return { ...block, sample: count(header.sample), from: count(header.from), tokens: count(header.tokens), segments };
}

export interface IPeak {
  readonly sample: number;
  readonly token: number;
  readonly call: string;
}

/** The token that stands out: the answer to `peak`; `null` where none does. */
export function decodePeak(data: unknown): IPeak | null {
  const { sample, token, call } = object(data);
  return number(token) === null ? null : { sample: count(sample), token: count(token), call: text(call) };
}

function decodeSide(value: unknown): IBreakSide {
  const side = object(value);
  const ids = list(side.ids).map(id => number(id) ?? -1);
  return { ids, texts: ids.map((_, i) => text(list(side.texts)[i])), tokens: count(side.tokens) };
}

/** A break from both sides: the answer to `sides`. */
export function decodeSides(data: unknown): IBreakSides {
  const b = object(data);
  return {
    callId: text(b.call_id),
    previousCallId: text(b.previous_call_id),
    cause: text(b.cause),
    index: count(b.index),
    start: count(b.start),
    left: count(b.left),
    sentence: text(b.sentence),
    stitching: text(b.stitching),
    sample: decodeSide(b.sample),
    prompt: decodeSide(b.prompt)
  };
}

/** What the rollouts of a group weigh: the answer to `weights`. */
export function decodeWeights(data: unknown): IGroupWeights {
  const w = object(data);
  return {
    step: number(w.step),
    normalizer: text(w.normalizer),
    normalizers: list(w.normalizers).map(text),
    flat: w.flat === true,
    sentence: text(w.sentence),
    rollouts: list(w.rollouts).map(item => {
      const r = object(item);
      const ghosts: Record<string, number> = {};
      for (const [name, share] of Object.entries(object(r.ghosts))) {
        ghosts[name] = number(share) ?? NaN;
      }
      return {
        id: text(r.id),
        state: text(r.state),
        outcome: text(r.outcome),
        reward: number(r.reward),
        advantage: number(r.advantage),
        weight: number(r.weight),
        samples: count(r.samples),
        tokens: count(r.tokens),
        breaks: count(r.breaks),
        ghosts
      };
    })
  };
}

/** A run that the lab remembers, as it is listed. */
export interface IRunChoice extends IRunInfo {
  readonly rollouts: number;
}

/** The answer to `runs`. */
export function decodeRuns(data: unknown): readonly IRunChoice[] {
  return list(object(data).runs).flatMap(item => {
    const run = decodeRun(item);
    return run ? [{ ...run, rollouts: count(object(item).rollouts) }] : [];
  });
}

/** Dotted names and texts: the answer to `settings`. */
export function decodeSettings(data: unknown): ReadonlyMap<string, string> {
  return new Map(Object.entries(object(object(data).settings)).map(([name, value]) => [name, text(value)]));
}

/** Part of another run: the answer to `run`. Throws `SchemaMismatch`. */
export function decodeRunPart(
  data: unknown,
  buffers: readonly Buffer[]
): { readonly frame: IFrame; readonly left: boolean } {
  return { frame: decodeFrame(data, buffers), left: object(data).left === true };
}
