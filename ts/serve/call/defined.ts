// Options that are left out are no options: engines refuse names that they do not know.

/** Without the keys that are undefined. */
export function defined<T extends object>(o: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(o).filter(([, value]) => value !== undefined)) as never;
}
