/** Records of the wire, field by field: what a field is called there follows from its name here. */

import { list, object } from './decodeJson';

/** How each field is read; `runId` is `run_id` on the wire. */
export type Fields<T> = { readonly [Name in keyof T]-?: (value: unknown) => T[Name] };

/** A reader of one kind of record; whatever else a value has is left out. */
export function record<T>(fields: Fields<T>): (value: unknown) => T {
  const readers = Object.entries<(value: unknown) => unknown>(fields).map(
    ([name, read]) => [name, name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`), read] as const
  );
  return value => {
    const json = object(value);
    return Object.fromEntries(readers.map(([name, key, read]) => [name, read(json[key])])) as T;
  };
}

/** A reader of lists. */
export function listOf<T>(read: (item: unknown, place: number) => T): (value: unknown) => readonly T[] {
  return value => list(value).map(read);
}
