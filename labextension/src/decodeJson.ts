/**
 * JSON from outside, field by field. Whatever arrives is untrusted (a saved notebook, an imported run, a newer kernel), so
 * every field is read by its type and a missing or malformed one becomes a neutral value; only an unknown schema is refused.
 */

import { SCHEMA_VERSION, SchemaMismatch } from './wire';

export type Json = Record<string, unknown>;

const EMPTY: Json = {};

export function object(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : EMPTY;
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function number(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

export function count(value: unknown): number {
  return Math.max(0, Math.trunc(number(value) ?? 0));
}

/** Text as it is; other JSON values as JSON, so that no field is ever lost by being of another type. */
export function text(value: unknown): string {
  if (typeof value === 'string') {
    return value;
  }
  return value === undefined || value === null ? '' : JSON.stringify(value);
}

export function checkSchema(header: Json): void {
  if (header.v !== SCHEMA_VERSION) {
    throw new SchemaMismatch(header.v);
  }
}
