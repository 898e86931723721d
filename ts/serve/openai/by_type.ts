// Objects of a body whose type says what else is in them.
import { z } from 'zod';

/** One of `kinds`, or what `usual` reads where no type is given; of the kind that was meant the first issue is told. */
export function byType<T>(kinds: Readonly<Record<string, z.ZodType<T>>>, usual: z.ZodType<T>) {
  const names = Object.keys(kinds);
  const type = z.string().refine((name) => names.includes(name), {
    error: ({ input }) => `expected one of ${names.join(', ')}, got ${JSON.stringify(input).slice(0, 100)}`,
  });
  return z.looseObject({ type: type.optional() }).transform((given, { issues }): T => {
    const schema = given.type === undefined ? usual : (kinds[given.type] as z.ZodType<T>);
    const { success, data, error } = schema.safeParse(given);
    if (success) return data;
    issues.push({ ...error.issues[0], input: given } as z.core.$ZodRawIssue);
    return z.NEVER;
  });
}
