/** A number that JSON has none for. */
export interface NotFinite {
  /** Where it is in the value, as a program would write it: `loss`, `steps[2].loss`; '' for the value itself. */
  at: string;
  number: number;
}

/** The first NaN or infinity in what JSON writes of a value, which would be null there; null: there is none. @throws what JSON.stringify throws */
export function notFinite(value: unknown): NotFinite | null {
  const places = new Map<unknown, string>();
  let found: NotFinite | null = null;
  JSON.stringify(value, function (this: unknown, key, item: unknown) {
    if (found !== null) return undefined;
    if (typeof item === 'number' && !Number.isFinite(item)) {
      found = { at: placeOf(places.get(this), key, this), number: item };
      return undefined;
    }
    if (typeof item === 'object' && item !== null) places.set(item, placeOf(places.get(this), key, this));
    return typeof item === 'bigint' ? 0 : item;
  });
  return found;
}

function placeOf(holder: string | undefined, key: string, inside: unknown): string {
  // JSON.stringify holds the value itself in an object of its own.
  if (holder === undefined) return '';
  if (Array.isArray(inside)) return `${holder}[${key}]`;
  return holder === '' ? key : `${holder}.${key}`;
}
