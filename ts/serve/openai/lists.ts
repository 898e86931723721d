// Lists of a body, read up to their first wrong entry: zod itself tells what is wrong with each, and a body has room for millions.
import { z } from 'zod';

type Issue = z.core.$ZodRawIssue;

/** As z.array(item), with bounds that are looked at before the entries; of the first entry that is wrong the first issue is told. */
export function list<T extends z.ZodType>(item: T, { min = 0, max = Number.POSITIVE_INFINITY } = {}) {
  return z.unknown().transform((given, { issues }): z.output<T>[] => {
    const refuse = (issue: Issue): never => {
      issues.push(issue);
      return z.NEVER;
    };
    if (!Array.isArray(given)) return refuse({ code: 'invalid_type', expected: 'array', input: given });
    const bounds = { origin: 'array', inclusive: true, input: given } as const;
    if (given.length < min) return refuse({ code: 'too_small', minimum: min, ...bounds });
    if (given.length > max) return refuse({ code: 'too_big', maximum: max, ...bounds });
    const read: z.output<T>[] = [];
    for (const [i, entry] of given.entries()) {
      const { success, data, error } = item.safeParse(entry);
      if (!success) {
        const first = error.issues[0] as z.core.$ZodIssue;
        return refuse({ ...first, path: [i, ...first.path], input: entry } as Issue);
      }
      read.push(data);
    }
    return read;
  });
}
