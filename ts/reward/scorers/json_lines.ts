// Messages to and from the process of a function in Python: JSON in one line each. Numbers that JSON lacks (integers beyond 2^53,
// NaN, infinities) are null in it, and stand beside the message in `special`, each as [path, digits].

type Path = readonly (string | number)[];
type Special = [Path, string][];

const RARE: Readonly<Record<string, number>> = { nan: Number.NaN, inf: Infinity, '-inf': -Infinity };

function plain(value: unknown, special: Special, path: Path): unknown {
  if (typeof value === 'bigint' || (typeof value === 'number' && !Number.isFinite(value))) {
    special.push([path, typeof value === 'bigint' ? String(value) : rareName(value)]);
    return null;
  }
  if (typeof value !== 'object' || value === null || value instanceof Date) return value;
  if (Array.isArray(value)) return value.map((one, i) => plain(one, special, [...path, i]));
  if (ArrayBuffer.isView(value) && Symbol.iterator in value)
    return plain([...(value as Int32Array)], special, path);
  // Also a key that is named __proto__.
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [key, plain(one, special, [...path, key])]),
  );
}

const rareName = (value: number): string => (Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf');

/** Half characters are escaped in it, so that Python gets them as they are. */
export function toLine(message: object): string {
  const special: Special = [];
  const value = plain(message, special, []) as object;
  return `${JSON.stringify({ ...value, special })}\n`;
}

/** @throws Error when it is no message */
export function fromLine(line: string): unknown {
  const { special = [], ...message } = JSON.parse(line) as { special?: Special };
  for (const [path, name] of special) {
    let holder = message as Record<string | number, unknown>;
    for (const key of path.slice(0, -1)) holder = holder[key] as Record<string | number, unknown>;
    holder[path.at(-1) as string] = RARE[name];
  }
  return message;
}
