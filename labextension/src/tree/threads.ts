/** Which call follows which, and which call began a thread. Pure. */

import type { ICallDetail } from '../wireRollout';

/** Calls that are looked at, from the latest on, to find the one that sent a helper. */
const LOOK_BACK = 64;
/** Shorter arguments of a tool call occur in any conversation. */
const TELLING = 12;

/** For every call the place of the call before it, in its thread or in the one that began it; -1 for none. */
export function callsBefore(calls: readonly ICallDetail[]): Int32Array {
  const before = new Int32Array(calls.length).fill(-1);
  const placeOf = new Map(calls.map((call, place) => [call.id, place]));
  const last = new Map<string, number>();
  calls.forEach((call, place) => {
    const parent = call.parentId === '' ? undefined : placeOf.get(call.parentId);
    const known = parent !== undefined && parent < place ? parent : last.get(call.thread);
    before[place] = known ?? sender(calls, place);
    last.set(call.thread, place);
  });
  return before;
}

/** The call whose tool call a new thread answers to: its arguments say what the thread begins with. */
function sender(calls: readonly ICallDetail[], place: number): number {
  const call = calls[place];
  if (place === 0 || call.thread === 'main') {
    return -1;
  }
  const opening = call.messages.filter(message => message.role === 'user').map(message => message.content);
  let fallback = -1;
  for (let i = place - 1; i >= 0 && place - i <= LOOK_BACK; i--) {
    if (calls[i].thread === call.thread || calls[i].kind === 'side') {
      continue;
    }
    fallback = fallback < 0 ? i : fallback;
    if (calls[i].reply.toolCalls.some(tool => says(tool.arguments, opening))) {
      return i;
    }
  }
  return fallback;
}

function says(said: string, opening: readonly string[]): boolean {
  let values: unknown[] = [];
  try {
    values = Object.values(JSON.parse(said) as object);
  } catch {
    return false;
  }
  return values.some(
    value => typeof value === 'string' && value.length >= TELLING && opening.some(text => text.includes(value))
  );
}
