// Columns of type DECIMAL. hyparquet multiplies their digits by a power of ten that no double holds (35 x 0.01 is not 0.35), and
// takes digits for doubles before that; so they are read as the integers that they are stored as, and put together here.
import { type FileMetaData, parquetSchema, type SchemaElement, type SchemaTree } from 'hyparquet';
import { printable } from '../base/printable';
import { TroupeError } from '../errors';

/** Makes numbers of what a column holds in the place of its decimals. */
export type DecimalReader = (value: unknown) => unknown;

/** The exponents of doubles end there. */
const MOST_DIGITS = 308;

/**
 * The metadata by which decimals come as they are stored, and for each column that has some what makes numbers of them: the nearest
 * double, as of a number in JSON; an integer beyond 2^53 is a bigint. Keys of maps stay hyparquet's matter, which makes texts of them.
 * @throws TroupeError INVALID_DATA: a scale that no decimal has
 */
export function withDecimals(
  file: string,
  metadata: FileMetaData,
): { metadata: FileMetaData; decimals: ReadonlyMap<string, DecimalReader> } {
  const found = new Set<SchemaElement>();
  const decimals = new Map<string, DecimalReader>();
  for (const column of parquetSchema(metadata).children) {
    const reader = readerOf(file, column, found);
    if (reader !== null) decimals.set(column.element.name, reader);
  }
  if (found.size === 0) return { metadata, decimals };
  const schema = metadata.schema.map((element) => (found.has(element) ? asStored(element) : element));
  return { metadata: { ...metadata, schema }, decimals };
}

function asStored({ converted_type: _, logical_type: __, ...element }: SchemaElement): SchemaElement {
  return element;
}

/** null: there are no decimals below `node`. */
function readerOf(file: string, node: SchemaTree, found: Set<SchemaElement>): DecimalReader | null {
  const { element, children } = node;
  const [only] = children;
  if (only === undefined) {
    const scale = scaleOf(file, node);
    if (scale === null) return null;
    found.add(element);
    return eachOf((value) => decimal(value, scale));
  }
  // What a variant is, its bytes say.
  if (element.logical_type?.type === 'VARIANT') return null;
  if (children.length === 1 && only.element.repetition_type === 'REPEATED') {
    if (element.converted_type === 'LIST' && only.children.length <= 1)
      return readerOf(file, only.children[0] ?? only, found);
    const [, value] = only.children;
    if (element.converted_type === 'MAP' && only.children.length === 2 && value !== undefined) {
      const reader = readerOf(file, value, found);
      return reader && eachOf((map) => mapped(map, () => reader));
    }
  }
  const readers = new Map<string, DecimalReader>();
  for (const child of children) {
    const reader = readerOf(file, child, found);
    if (reader !== null) readers.set(child.element.name, reader);
  }
  return readers.size === 0 ? null : eachOf((struct) => mapped(struct, (name) => readers.get(name)));
}

/** null: no decimal. */
function scaleOf(file: string, { element, path }: SchemaTree): number | null {
  const { converted_type: converted, logical_type: logical } = element;
  if (converted !== 'DECIMAL' && logical?.type !== 'DECIMAL') return null;
  const scale = logical?.type === 'DECIMAL' ? logical.scale : (element.scale ?? 0);
  if (Number.isInteger(scale) && scale >= 0 && scale <= MOST_DIGITS) return scale;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${file}: column ${printable(path.join('.'))} is a decimal with a scale of ${String(scale)}: expected 0 to ${MOST_DIGITS}: the file is damaged`,
  );
}

/** Lists of any depth are arrays, and what is null may be undefined. */
function eachOf(one: DecimalReader): DecimalReader {
  const each = (value: unknown): unknown => {
    if (value === null || value === undefined) return value;
    return Array.isArray(value) ? value.map(each) : one(value);
  };
  return each;
}

function mapped(value: unknown, readerOfKey: (name: string) => DecimalReader | undefined): unknown {
  return Object.fromEntries(
    Object.entries(value as object).map(([name, item]) => [name, readerOfKey(name)?.(item) ?? item]),
  );
}

/** @param stored the digits as an integer, or as big-endian bytes of one in two's complement */
function decimal(stored: unknown, scale: number): number | bigint {
  const digits = stored instanceof Uint8Array ? integerOf(stored) : BigInt(stored as number | bigint);
  const unit = 10n ** BigInt(scale);
  return digits % unit === 0n ? digits / unit : Number(`${digits}e-${scale}`);
}

function integerOf(bytes: Uint8Array): bigint {
  if (bytes.length === 0) return 0n;
  return BigInt.asIntN(8 * bytes.length, BigInt(`0x${Buffer.from(bytes).toString('hex')}`));
}
