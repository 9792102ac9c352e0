/**
 * The rollouts of one run as columns: 10⁵ rows cost a few megabytes and one pass to sort.
 *
 * A row's place is its 0-based position in the run, the primary key of the wire. Rows may arrive in any order and
 * more than once; a place that has not arrived yet is not `present`.
 */

import type { Column, IRowBlock } from './wire';

export const NUMBER_COLUMNS = [
  'step',
  'version',
  'reward',
  'advantage',
  'weight',
  'calls',
  'samples',
  'breaks',
  'tokens',
  'staleness',
  'created_at',
  'started_at',
  'finished_at'
] as const;
export const CODE_COLUMNS = ['mode', 'state', 'outcome'] as const;
export const TEXT_COLUMNS = ['id', 'group', 'task', 'harness'] as const;

export type NumberColumn = (typeof NUMBER_COLUMNS)[number];
export type CodeColumn = (typeof CODE_COLUMNS)[number];
export type TextColumn = (typeof TEXT_COLUMNS)[number];

/** Columns of whole numbers, where −1 on the wire stands for none. */
const NONE_BELOW_ZERO: ReadonlySet<string> = new Set(['step', 'version', 'samples', 'breaks', 'staleness']);

const FIRST_CAPACITY = 256;
/** More rows than any panel shows; a frame that names a place beyond it is broken, not big. */
const MAX_ROWS = 5_000_000;

/** The distinct words of a code column; code 0 is the empty word. */
class Words {
  readonly words: string[] = [''];
  private _codes = new Map<string, number>([['', 0]]);

  code(word: string): number {
    let code = this._codes.get(word);
    if (code === undefined) {
      // A column has at most 256 words; what does not fit is shown as unknown rather than as another word.
      code = this.words.length < 256 ? this.words.push(word) - 1 : 0;
      this._codes.set(word, code);
    }
    return code;
  }
}

export class RowTable {
  /** One more than the highest place seen. */
  size = 0;
  /** How many places are filled. */
  count = 0;
  /** Grows with every change. */
  revision = 0;

  /** Numbers by place; NaN where there is none. */
  readonly numbers: Record<NumberColumn, Float64Array>;
  readonly codes: Record<CodeColumn, Uint8Array>;
  readonly texts: Record<TextColumn, string[]>;
  present = new Uint8Array(FIRST_CAPACITY);

  constructor() {
    this.numbers = Object.fromEntries(
      NUMBER_COLUMNS.map(name => [name, new Float64Array(FIRST_CAPACITY).fill(NaN)])
    ) as Record<NumberColumn, Float64Array>;
    this.codes = Object.fromEntries(CODE_COLUMNS.map(name => [name, new Uint8Array(FIRST_CAPACITY)])) as Record<
      CodeColumn,
      Uint8Array
    >;
    this.texts = Object.fromEntries(TEXT_COLUMNS.map(name => [name, []])) as unknown as Record<TextColumn, string[]>;
  }

  /** The word at a place. */
  word(column: CodeColumn, row: number): string {
    return this._words[column].words[this.codes[column][row]] ?? '';
  }

  words(column: CodeColumn): readonly string[] {
    return this._words[column].words;
  }

  text(column: TextColumn, row: number): string {
    return this.texts[column][row] ?? '';
  }

  /** The place of a rollout, or -1. */
  rowOf(id: string): number {
    return this._rowOf.get(id) ?? -1;
  }

  /** The first place from one on that has not arrived. */
  missing(from: number): number {
    let place = from;
    while (place < this.size && this.present[place]) {
      place += 1;
    }
    return place;
  }

  /** Write a block of rows. A block without the key column `row` is ignored; one that says nothing new, too. */
  apply(block: IRowBlock): void {
    const key = block.columns.get('row');
    if (!key || key.kind !== 'number' || block.rows === 0) {
      return;
    }
    const known = this.count;
    const places = this._claim(key.values, block.rows);
    let changed = this.count !== known;
    for (const [name, column] of block.columns) {
      changed = this._write(name, column, places) || changed;
    }
    this.revision += changed ? 1 : 0;
  }

  clear(): void {
    this.size = 0;
    this.count = 0;
    this.present.fill(0);
    NUMBER_COLUMNS.forEach(name => this.numbers[name].fill(NaN));
    CODE_COLUMNS.forEach(name => this.codes[name].fill(0));
    TEXT_COLUMNS.forEach(name => (this.texts[name].length = 0));
    this._rowOf.clear();
    this.revision += 1;
  }

  /** Make room for the places of a block; -1 stands for a place that cannot be. */
  private _claim(keys: ArrayLike<number>, rows: number): Int32Array {
    const places = new Int32Array(rows);
    for (let i = 0; i < rows; i++) {
      const place = keys[i];
      places[i] = Number.isInteger(place) && place >= 0 && place < MAX_ROWS ? place : -1;
      if (places[i] >= this.size) {
        this.size = places[i] + 1;
      }
    }
    this._grow(this.size);
    for (const place of places) {
      if (place >= 0 && !this.present[place]) {
        this.present[place] = 1;
        this.count += 1;
      }
    }
    return places;
  }

  private _grow(size: number): void {
    let capacity = this.present.length;
    if (size <= capacity) {
      return;
    }
    while (capacity < size) {
      capacity *= 2;
    }
    const present = new Uint8Array(capacity);
    present.set(this.present);
    this.present = present;
    for (const name of NUMBER_COLUMNS) {
      const grown = new Float64Array(capacity).fill(NaN);
      grown.set(this.numbers[name]);
      this.numbers[name] = grown;
    }
    for (const name of CODE_COLUMNS) {
      const grown = new Uint8Array(capacity);
      grown.set(this.codes[name]);
      this.codes[name] = grown;
    }
  }

  /** Whether anything was written that was not there. */
  private _write(name: string, column: Column, places: Int32Array): boolean {
    if (name in this.numbers && column.kind === 'number') {
      return this._writeNumbers(name as NumberColumn, column.values, places);
    }
    if (name in this.codes && column.kind !== 'number') {
      return this._writeCodes(name as CodeColumn, column, places);
    }
    return name in this.texts && column.kind === 'text' && this._writeTexts(name as TextColumn, column.values, places);
  }

  private _writeNumbers(name: NumberColumn, values: ArrayLike<number>, places: Int32Array): boolean {
    const target = this.numbers[name];
    const missing = NONE_BELOW_ZERO.has(name) ? -1 : NaN;
    let changed = false;
    for (let i = 0; i < places.length; i++) {
      const value = values[i] === missing ? NaN : values[i];
      if (places[i] >= 0 && !Object.is(target[places[i]], value)) {
        target[places[i]] = value;
        changed = true;
      }
    }
    return changed;
  }

  private _writeCodes(name: CodeColumn, column: Exclude<Column, { kind: 'number' }>, places: Int32Array): boolean {
    const words = this._words[name];
    const target = this.codes[name];
    const map = column.kind === 'code' ? column.values.map(word => words.code(word)) : null;
    let changed = false;
    for (let i = 0; i < places.length; i++) {
      const code = column.kind === 'code' ? (map?.[column.codes[i]] ?? 0) : words.code(column.values[i] ?? '');
      if (places[i] >= 0 && target[places[i]] !== code) {
        target[places[i]] = code;
        changed = true;
      }
    }
    return changed;
  }

  private _writeTexts(name: TextColumn, values: readonly (string | null)[], places: Int32Array): boolean {
    const target = this.texts[name];
    let changed = false;
    for (let i = 0; i < places.length; i++) {
      const place = places[i];
      const value = values[i] ?? '';
      if (place < 0 || target[place] === value) {
        continue;
      }
      while (target.length < place) {
        target.push(''); // no holes: a sparse array would fall back to a dictionary
      }
      target[place] = value;
      changed = true;
      if (name === 'id' && value) {
        this._rowOf.set(value, place);
      }
    }
    return changed;
  }

  private _words: Record<CodeColumn, Words> = { mode: new Words(), state: new Words(), outcome: new Words() };
  private _rowOf = new Map<string, number>();
}
