// Methods and filters of texts that the template engine has otherwise than Python.

/** White space as Python's str.strip() takes it off: JavaScript's has the byte-order mark, and lacks the separators. */
const SPACE = '[\\t-\\r\\x1c-\\x1f\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000 ]';
const LEADING = new RegExp(`^${SPACE}+`);
const WORD_ENDS = new RegExp(`((?:${SPACE}|[-({[<])+)`);

/** Python's split(): at white space, nothing empty. */
export const words = (value: string): string[] =>
  value.split(new RegExp(`${SPACE}+`)).filter((word) => word !== '');

interface Ends {
  start: boolean;
  end: boolean;
}

const STRIPS: Readonly<Record<string, Ends>> = {
  strip: { start: true, end: true },
  lstrip: { start: true, end: false },
  rstrip: { start: false, end: true },
};

/** Calls `method` of a text with texts as arguments; null when the template engine's own does. */
export function textMethod(method: string, value: string, args: readonly unknown[]): string | null {
  const ends = Object.hasOwn(STRIPS, method) ? STRIPS[method] : undefined;
  if (ends !== undefined) return strip(method, value, args, ends);
  if (args.length > 0) return null;
  if (method === 'capitalize') return capitalized(value);
  return method === 'title' ? value.toLowerCase().replace(/\p{L}+/gu, initial) : null;
}

/** The filters of Jinja, which differ from the methods of the same name. */
export function textFilter(filter: string, value: string): string | null {
  if (filter === 'trim') return strip('trim', value, [], { start: true, end: true });
  if (filter === 'capitalize') return capitalized(value);
  if (filter !== 'title') return null;
  return value
    .split(WORD_ENDS)
    .map((part) => initial(part.toLowerCase()))
    .join('');
}

const initial = (word: string): string => {
  const [first = ''] = word;
  return first.toUpperCase() + word.slice(first.length);
};

const capitalized = (value: string): string => initial(value.toLowerCase());

function strip(method: string, value: string, args: readonly unknown[], ends: Ends): string {
  const [characters = null] = args;
  if (characters !== null && typeof characters !== 'string') throw new Error(`${method}() expects texts`);
  return characters === null ? withoutSpace(value, ends) : without(value, new Set(characters), ends);
}

function withoutSpace(value: string, ends: Ends): string {
  const rest = ends.start ? value.replace(LEADING, '') : value;
  if (!ends.end) return rest;
  const space = new RegExp(SPACE);
  let to = rest.length;
  while (to > 0 && space.test(rest[to - 1] as string)) to--;
  return rest.slice(0, to);
}

function without(value: string, taken: ReadonlySet<string>, ends: Ends): string {
  const points = Array.from(value);
  let [from, to] = [0, points.length];
  while (ends.start && from < to && taken.has(points[from] as string)) from++;
  while (ends.end && to > from && taken.has(points[to - 1] as string)) to--;
  return points.slice(from, to).join('');
}
