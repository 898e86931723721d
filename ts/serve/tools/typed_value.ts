// The JSON of a value that a model wrote as plain text.
import { isSchema } from './parameters';

/** The source of JSON that the text is; null: it is none. It stays as it is written, so that long numbers keep their digits. */
function jsonSource(text: string, accept: (value: unknown) => boolean = () => true): string | null {
  try {
    const source = text.trim();
    return accept(JSON.parse(source)) ? source : null;
  } catch {
    return null;
  }
}

const isNoInfinity = (value: unknown): boolean => typeof value !== 'number' || Number.isFinite(value);

/** In the order in which they are tried: what may be text is that only when it is nothing else. */
const READERS: Readonly<Record<string, (text: string) => string | null>> = {
  null: (text) => (text.trim().toLowerCase() === 'null' ? 'null' : null),
  integer: (text) => {
    const [, sign, digits] = /^([+-]?)0*([1-9]\d*|0)$/.exec(text.trim()) ?? [];
    return digits === undefined ? null : `${sign === '-' ? '-' : ''}${digits}`;
  },
  number: (text) => {
    const value = text.trim() === '' || /[^\d.eE+\-\s]/.test(text) ? Number.NaN : Number(text);
    if (!Number.isFinite(value)) return null;
    return jsonSource(text) ?? JSON.stringify(value);
  },
  boolean: (text) => {
    const word = text.trim().toLowerCase();
    return ['true', '1'].includes(word) ? 'true' : ['false', '0'].includes(word) ? 'false' : null;
  },
  object: (text) => jsonSource(text, isSchema),
  array: (text) => jsonSource(text, Array.isArray),
  string: (text) => JSON.stringify(text),
};

/** As one of these types, else as what it is. */
export function typedJson(text: string, types: ReadonlySet<string>): string {
  for (const [type, read] of Object.entries(READERS)) {
    const source = types.has(type) ? read(text) : null;
    if (source !== null) return source;
  }
  // Templates write null as Python does.
  if (types.has('null') && text.trim() === 'None') return 'null';
  return jsonSource(text, isNoInfinity) ?? JSON.stringify(text);
}
