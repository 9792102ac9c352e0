/** What is selected, as the Python that yields it in a cell. */

import type { ISelection } from './selection';

/** A Python string literal. Ids of imported runs may hold anything. */
export function pythonString(text: string): string {
  return JSON.stringify(text).replace(/[\u007f-\u{10ffff}]/gu, character => {
    const code = character.codePointAt(0) as number;
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, '0')}` : `\\u${code.toString(16).padStart(4, '0')}`;
  });
}

/**
 * @param ordinal - of the selected call among the rollout's, if it is known.
 * @param run - the expression of the run.
 */
export function asCode(selection: ISelection, ordinal: number | null = null, run = 'run'): string {
  if (selection.rollout !== undefined) {
    const rollout = `${run}.rollout(${pythonString(selection.rollout)})`;
    return ordinal === null ? rollout : `${rollout}.call(${ordinal})`;
  }
  return selection.step === undefined ? run : `${run}.rollouts(step=${selection.step})`;
}
