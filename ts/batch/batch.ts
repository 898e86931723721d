import { show } from '../base/text';
import {
  arrayLength,
  checkArrays,
  checkColumnOptions,
  checkColumns,
  checkCount,
  checkNamed,
  checkNames,
  checkRagged,
  checkRecord,
  checkSize,
  own,
} from './arguments';
import { ColumnMemory } from './column_memory';
import type { Column, ColumnData, Granularity, KnownColumns } from './columns';
import { lengthOf, makeColumn, toInt32 } from './columns';
import { fail } from './fail';
import { checkEqual, FIXED } from './fixed_columns';
import { indexRange, permutation, resolveIndices } from './indices';
import { concatColumns, type Layout, makeLayout, offsetsFor, takeColumn, takeLayout } from './layout';
import { PADDED, type PaddedInput, padColumn, unpad } from './padded';
import { checkSameColumns } from './same_columns';
import { joinSequences, type Seqs } from './sequences';

export type { Seqs } from './sequences';

export interface ColumnOptions {
  /** Granularity of columns for which it does not follow from name or length. */
  granularity?: Record<string, Granularity>;
  /** Typed arrays become the batch's own memory instead of being copied: the caller must not write to them any more, nor give them changed to another batch. */
  adopt?: boolean;
}

export interface RaggedInput {
  tokens: ArrayLike<number>; // [ΣL]
  promptLens: ArrayLike<number>; // [B]
  responseLens: ArrayLike<number>; // [B]
  columns?: Record<string, unknown>;
}

/** What nobody else has. */
const OWN = Symbol('batch');

/**
 * B sequences of a prompt and a response, with columns at three granularities: token [ΣL], response token [ΣR] and
 * sequence [B]. Nothing is padded: per-token columns are concatenated, and `seqOffsets`, `promptLens` and
 * `responseOffsets` say where each sequence lies.
 *
 * A batch never changes: every operation returns a new one. Arrays that it hands out are its own memory, so treat them as
 * read-only; arrays given to it are copied, unless it is told to `adopt` them. Errors are TroupeError INVALID_ARGUMENT.
 */
export class Batch {
  private constructor(
    private readonly layout: Layout,
    private readonly columns: ReadonlyMap<string, Column>,
    own?: typeof OWN,
  ) {
    if (own !== OWN)
      fail(
        'expected Batch.fromSequences, fromRagged or fromPadded, which check what they are given, but got new Batch',
      );
    Object.freeze(this);
  }

  /**
   * From verl's layout: [B, ...] row-major, prompts left-padded, responses right-padded. The prompt is what is attended
   * among the first P columns, the response what is attended among the last R; response-token columns are read there.
   * Attended positions whose `responseMask` is 0 (tool output) are kept.
   */
  static fromPadded(p: PaddedInput): Batch {
    checkNamed('fromPadded', p, PADDED);
    for (const name of ['inputIds', 'attentionMask'] as const) arrayLength(`fromPadded: ${name}`, p[name]);
    const { layout, tokens, responseMask, columns, granularity } = unpad(p);
    return Batch.#build(layout, { tokens, responseMask, ...columns }, { granularity });
  }

  /** From token ids per sequence. `columns` may hold any column; `responseMask` defaults to all ones. */
  static fromSequences(
    prompts: Seqs,
    responses: Seqs,
    columns: Record<string, unknown> = {},
    o: ColumnOptions = {},
  ): Batch {
    checkArrays('fromSequences: prompts', prompts);
    checkArrays('fromSequences: responses', responses);
    checkColumns('fromSequences', columns);
    checkColumnOptions('fromSequences', o);
    const { layout, tokens } = joinSequences(prompts, responses);
    return Batch.#build(layout, { ...columns, tokens }, o);
  }

  /** From concatenated tokens [ΣL] and the lengths of each sequence's prompt and response. */
  static fromRagged(r: RaggedInput, o: ColumnOptions = {}): Batch {
    checkRagged(r);
    checkColumnOptions('fromRagged', o);
    const layout = makeLayout(toInt32('promptLens', r.promptLens), toInt32('responseLens', r.responseLens));
    return Batch.#build(layout, { ...r.columns, tokens: r.tokens }, o);
  }

  static #build(layout: Layout, columns: Record<string, unknown>, o: ColumnOptions): Batch {
    const map = new Map<string, Column>();
    // The mask stands behind the tokens, whether it is given or not.
    for (const [name, value] of Object.entries({ tokens: undefined, responseMask: undefined, ...columns })) {
      if (name === 'responseMask' && !Object.hasOwn(columns, name))
        map.set(name, { granularity: 'response', data: new Uint8Array(layout.numResponseTokens).fill(1) });
      else map.set(name, makeColumn(name, value, layout, own(o.granularity, name), o.adopt));
    }
    map.set('promptLens', { granularity: 'sequence', data: layout.promptLens });
    return new Batch(layout, map, OWN);
  }

  /** The sequences of all batches, in order. They must have the same columns. */
  static concat(batches: readonly Batch[]): Batch {
    const first = checkSameColumns(batches, (batch) => batch instanceof Batch);
    if (batches.length === 1) return first;
    const lengths = (of: (b: Batch) => Int32Array): Int32Array =>
      concatColumns(batches.map((b): Column => ({ granularity: 'sequence', data: of(b) })))
        .data as Int32Array;
    // First: it refuses more tokens than a batch can hold.
    const layout = makeLayout(
      lengths((b) => b.promptLens),
      lengths((b) => b.responseLens),
    );
    const columns = new Map<string, Column>();
    for (const name of first.names) columns.set(name, concatColumns(batches.map((b) => b.column(name))));
    columns.set('promptLens', { granularity: 'sequence', data: layout.promptLens });
    return new Batch(layout, columns, OWN);
  }

  /** B */
  get size(): number {
    return this.layout.size;
  }

  /** ΣL */
  get numTokens(): number {
    return this.layout.numTokens;
  }

  /** ΣR */
  get numResponseTokens(): number {
    return this.layout.numResponseTokens;
  }

  /** [B+1]: sequence i is tokens seqOffsets[i] .. seqOffsets[i+1]. */
  get seqOffsets(): Int32Array {
    return this.layout.seqOffsets;
  }

  /** [B+1]: the response of sequence i is entries responseOffsets[i] .. responseOffsets[i+1] of response-token columns. */
  get responseOffsets(): Int32Array {
    return this.layout.responseOffsets;
  }

  /** [B] */
  get promptLens(): Int32Array {
    return this.layout.promptLens;
  }

  /** [B], prompt and response. */
  get sequenceLens(): Int32Array {
    return this.layout.sequenceLens;
  }

  /** [B] */
  get responseLens(): Int32Array {
    return this.layout.responseLens;
  }

  get names(): string[] {
    return [...this.columns.keys()];
  }

  has(name: string): boolean {
    return this.columns.has(name);
  }

  /** A column by name; an absent one is an error that lists what there is. */
  get<N extends keyof KnownColumns>(name: N): KnownColumns[N];
  get(name: string): ColumnData;
  get(name: string): ColumnData {
    return this.column(name).data;
  }

  granularity(name: string): Granularity {
    return this.column(name).granularity;
  }

  /** The part of a per-token column that belongs to sequence i, or the value of a sequence column. */
  row(name: string, i: number): unknown {
    const column = this.column(name);
    const [index] = resolveIndices([i], this.size);
    const offsets = offsetsFor(this.layout, column.granularity);
    if (offsets === null) return column.data[index as number];
    return column.data.slice(offsets[index as number], offsets[(index as number) + 1]);
  }

  /** Token ids of prompt i. */
  prompt(i: number): Int32Array {
    const [index] = resolveIndices([i], this.size);
    const start = this.seqOffsets[index as number] as number;
    return this.get('tokens').slice(start, start + (this.promptLens[index as number] as number));
  }

  /** Token ids of response i, tool tokens included. */
  response(i: number): Int32Array {
    const [index] = resolveIndices([i], this.size);
    const start = (this.seqOffsets[index as number] as number) + (this.promptLens[index as number] as number);
    return this.get('tokens').slice(start, this.seqOffsets[(index as number) + 1]);
  }

  /** A response-token column in verl's layout: [B, R] row-major, right-padded with `padValue`. R: the longest response. */
  toPadded(name: string, responseLength?: number, padValue = 0): Float32Array {
    return padColumn(this.layout, name, this.column(name), responseLength, padValue);
  }

  /**
   * Adds columns (verl's union). A column that is there already must be equal (NaN equals NaN); to change one, `drop` it
   * first. Names not known to Troupe take their granularity from their length.
   */
  with(columns: Record<string, unknown>, o: ColumnOptions = {}): Batch {
    checkRecord('with', columns);
    checkColumnOptions('with', o);
    const map = new Map(this.columns);
    for (const [name, value] of Object.entries(columns)) {
      const present = this.columns.has(name) ? this.column(name) : undefined;
      const granularity = own(o.granularity, name) ?? present?.granularity;
      const added = makeColumn(name, value, this.layout, granularity, o.adopt);
      if (present === undefined) map.set(name, added);
      else checkEqual(name, present, added);
    }
    return new Batch(this.layout, map, OWN);
  }

  /** The same sequences with another responseMask, [ΣR] or per sequence: tokens that it leaves out no longer count. */
  withResponseMask(mask: unknown): Batch {
    const map = new Map(this.columns);
    return new Batch(
      this.layout,
      map.set('responseMask', makeColumn('responseMask', mask, this.layout)),
      OWN,
    );
  }

  /** Only these columns; tokens, promptLens, responseMask and, where there are some, the images of the prompts always stay. */
  select(names: readonly string[]): Batch {
    checkNames('select', names);
    const map = new Map<string, Column>();
    const images = this.has('images') ? ['images'] : [];
    for (const name of [...FIXED, ...images, ...names]) map.set(name, this.column(name));
    return new Batch(this.layout, map, OWN);
  }

  /** Without these columns. */
  drop(names: string | readonly string[]): Batch {
    const map = new Map(this.columns);
    const dropped = typeof names === 'string' ? [names] : names;
    checkNames('drop', dropped);
    for (const name of dropped) {
      this.listed(name);
      if (FIXED.includes(name)) fail(`drop: '${name}' is part of every batch`);
      map.delete(name);
    }
    return new Batch(this.layout, map, OWN);
  }

  /** Splits the columns: those named in `popped`, all others in `rest`. */
  pop(names: readonly string[]): { popped: Batch; rest: Batch } {
    return { popped: this.select(names), rest: this.drop(names) };
  }

  /** New names for columns: { old: new }. */
  rename(names: Record<string, string>): Batch {
    checkRecord('rename', names);
    checkNames('rename', Object.values(names));
    const map = new Map(this.columns);
    for (const [from, to] of Object.entries(names)) {
      const column = this.column(from);
      if (FIXED.includes(from)) fail(`rename: '${from}' is part of every batch`);
      if (map.has(to)) fail(`rename: '${from}' to '${to}': there is a column '${to}' already`);
      map.delete(from);
      map.set(to, makeColumn(to, column.data, this.layout, column.granularity));
    }
    return new Batch(this.layout, map, OWN);
  }

  /** Sequences start .. end-1, with the rules of Array.slice. */
  slice(start?: number, end?: number): Batch {
    return this.#gather(indexRange(this.size, start, end));
  }

  /** These sequences, in this order, repeats allowed; negative indices count from the end. Also a mask of B booleans. */
  take(indices: ArrayLike<number> | ArrayLike<boolean>): Batch {
    checkSize('take', arrayLength('take', indices));
    return this.#gather(resolveIndices(indices, this.size));
  }

  /** The sequences in another order. */
  reorder(indices: ArrayLike<number>): Batch {
    checkSize('reorder', arrayLength('reorder', indices));
    return this.#gather(permutation(indices, this.size));
  }

  /** n parts of equal size, in order; B must divide by n. */
  chunk(n: number): Batch[] {
    checkCount('chunk', n, 1);
    checkSize(`chunk: ${n} parts`, n);
    if (this.size % n !== 0)
      fail(`chunk: ${this.size} sequences do not divide into ${n} equal parts: use padToDivisor(${n}) first`);
    return this.size === 0 ? Array.from({ length: n }, () => this) : this.split(this.size / n);
  }

  /** Parts of `size` sequences, in order; the last may be shorter. */
  split(size: number): Batch[] {
    checkCount('split', size, 1);
    const parts = [];
    for (let start = 0; start < this.size; start += size) parts.push(this.slice(start, start + size));
    return parts;
  }

  /** Each sequence `times` times: 'interleaved' a a b b (also `true`, verl's `interleave`), 'tiled' a b a b (`false`). */
  repeat(times: number, order: 'interleaved' | 'tiled' | boolean = 'interleaved'): Batch {
    checkCount('repeat', times, 0);
    checkSize(`repeat: ${this.size} sequences x ${times}`, this.size * times);
    const interleaved = order === true || order === 'interleaved';
    if (!interleaved && order !== false && order !== 'tiled')
      fail(`repeat: expected 'interleaved' or 'tiled' but got ${show(order)}`);
    const indices = new Int32Array(this.size * times);
    for (let j = 0; j < indices.length; j++) indices[j] = interleaved ? Math.floor(j / times) : j % this.size;
    return this.#gather(indices);
  }

  /** Repeats sequences from the start, as often as needed, until B divides by `divisor`. Undo with `unpad(padSize)`. */
  padToDivisor(divisor: number): { batch: Batch; padSize: number } {
    checkCount('padToDivisor', divisor, 1);
    checkSize(`padToDivisor: ${divisor} sequences`, divisor);
    const padSize = (divisor - (this.size % divisor)) % divisor;
    if (padSize === 0) return { batch: this, padSize };
    return {
      batch: this.#gather(Int32Array.from({ length: this.size + padSize }, (_, j) => j % this.size)),
      padSize,
    };
  }

  /** Without the last `padSize` sequences. */
  unpad(padSize: number): Batch {
    if (!Number.isInteger(padSize) || padSize < 0 || padSize > this.size) {
      fail(`unpad: expected 0 to ${this.size} but got ${show(padSize)}`);
    }
    return padSize === 0 ? this : this.slice(0, this.size - padSize);
  }

  /** Mini-batches of `size` sequences in order, `epochs` times; B must divide by `size`. */
  *minibatches(size: number, epochs = 1): Generator<Batch, void> {
    checkCount('minibatches', size, 1);
    checkCount('minibatches: epochs', epochs, 0);
    if (this.size % size !== 0)
      fail(`minibatches: ${this.size} sequences do not divide into mini-batches of ${size}`);
    const parts = this.split(size);
    for (let epoch = 0; epoch < epochs; epoch++) yield* parts;
  }

  /**
   * Gives the memory of columns that `generate`, `computeLogProb` and `computeValues` made back to the models that made them, for their next
   * batches, which takes much less time than to find fresh memory. Their arrays are empty from then on, here and in every batch that shares
   * them (`with`, `select`, `drop`, ...), and to ask for them is an error. For the end of a step: no call of a model may be running on them.
   */
  recycle(): void {
    for (const { data } of this.columns.values()) ColumnMemory.reclaim(data);
  }

  private column(name: string): Column {
    const column = this.listed(name);
    if (column.data.length !== lengthOf(this.layout, column.granularity))
      fail(`column '${name}' has been recycled: read it before batch.recycle(), or keep a copy of it`);
    return column;
  }

  private listed(name: string): Column {
    return (
      this.columns.get(name) ??
      fail(
        `there is no column ${typeof name === 'string' ? `'${name}'` : show(name)}; this batch has ${this.names.join(', ')}`,
      )
    );
  }

  #gather(indices: Int32Array): Batch {
    const layout = takeLayout(this.layout, indices);
    const columns = new Map<string, Column>();
    for (const name of this.columns.keys())
      columns.set(name, takeColumn(this.column(name), this.layout, layout, indices));
    return new Batch(layout, columns, OWN);
  }
}
