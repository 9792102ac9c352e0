/** Tables on the wire: binary columns, or the plain ones of a saved view. */

import { count, Json, list, number, object, text } from './decodeJson';
import type { Column, IRowBlock } from './wire';

export type Buffer = ArrayBuffer | ArrayBufferView;

/** The bytes of one buffer, copied when they are not aligned for `width`-byte numbers. */
function bytes(buffer: Buffer, width: number): Uint8Array {
  const view = ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
  return view.byteOffset % width === 0 ? view : view.slice();
}

/** Typed arrays read in the machine's byte order, the wire is little-endian; the few others take the slow road. */
const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

function numbers(buffer: Buffer, width: 4 | 8): Float64Array | Int32Array {
  const raw = bytes(buffer, width);
  const length = Math.floor(raw.byteLength / width);
  if (LITTLE_ENDIAN) {
    return width === 8
      ? new Float64Array(raw.buffer, raw.byteOffset, length)
      : new Int32Array(raw.buffer, raw.byteOffset, length);
  }
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  return width === 8
    ? Float64Array.from({ length }, (_, i) => view.getFloat64(i * 8, true))
    : Int32Array.from({ length }, (_, i) => view.getInt32(i * 4, true));
}

function floats(buffer: Buffer): Float32Array {
  const raw = bytes(buffer, 4);
  const length = Math.floor(raw.byteLength / 4);
  if (LITTLE_ENDIAN) {
    return new Float32Array(raw.buffer, raw.byteOffset, length);
  }
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  return Float32Array.from({ length }, (_, i) => view.getFloat32(i * 4, true));
}

function texts(values: readonly unknown[]): (string | null)[] {
  return values.map(value => (typeof value === 'string' ? value : null));
}

function binaryColumn(spec: Json, buffer: Buffer): Column | null {
  switch (spec.type) {
    case 'f64':
      return { kind: 'number', values: numbers(buffer, 8) };
    case 'f32':
      return { kind: 'number', values: floats(buffer) };
    case 'i32':
      return { kind: 'number', values: numbers(buffer, 4) };
    case 'code':
      return { kind: 'code', codes: bytes(buffer, 1), values: list(spec.values).map(text) };
    case 'json':
      return { kind: 'text', values: texts(list(JSON.parse(new TextDecoder().decode(bytes(buffer, 1))))) };
    default:
      return null; // a type of a later minor version: leave the column out, keep the rest
  }
}

const TEXT_COLUMNS = new Set(['id', 'group', 'task', 'harness', 'mode', 'state', 'outcome']);

/** A column of a saved view, whose values are plain JSON. */
function plainColumn(name: string, values: readonly unknown[]): Column {
  return TEXT_COLUMNS.has(name)
    ? { kind: 'text', values: texts(values) }
    : { kind: 'number', values: values.map(value => number(value) ?? NaN) };
}

function columnLength(column: Column): number {
  return column.kind === 'code' ? column.codes.length : column.values.length;
}

export function decodeRows(value: unknown, buffers: readonly Buffer[]): IRowBlock {
  const block = object(value);
  const columns = new Map<string, Column>();
  let rows = count(block.rows);
  for (const item of list(block.columns)) {
    const spec = object(item);
    const name = text(spec.name);
    const buffer = typeof spec.buffer === 'number' ? buffers[spec.buffer] : undefined;
    const column = buffer
      ? binaryColumn(spec, buffer)
      : Array.isArray(spec.values) && spec.buffer === undefined
        ? plainColumn(name, spec.values)
        : null;
    if (column) {
      columns.set(name, column);
      rows = Math.min(rows, columnLength(column));
    }
  }
  return { rows, columns };
}
