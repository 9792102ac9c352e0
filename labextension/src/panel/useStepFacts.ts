/** `stepFacts` of the rows as they change, in a small part of the time. */

import { useRef } from 'react';

import { IStepFacts, stepFacts } from '../stepFacts';
import { useView } from './view';

/** Facts are found out anew when this many times their own cost has passed. */
const REST = 20;

export function useStepFacts(): IStepFacts {
  const { source } = useView();
  const { rows, active } = source.model;
  const kept = useRef<{ facts: IStepFacts; of: unknown; revision: number; until: number } | null>(null);
  const now = performance.now();
  const known = kept.current;
  if (!known || known.of !== rows || (known.revision !== rows.revision && (!active || now >= known.until))) {
    const facts = stepFacts(rows);
    const end = performance.now();
    kept.current = { facts, of: rows, revision: rows.revision, until: end + REST * (end - now) };
    return facts;
  }
  return known.facts;
}
