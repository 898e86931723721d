// Objects of a body whose type says what else is in them.
import { z } from 'zod';

/**
 * Read as `schemaOf` its type says, so that what is wrong is told of the kind that was meant; null: there is none, which `expected`
 * tells.
 */
export function byType<T>(
  schemaOf: (type: string | undefined) => z.ZodType<T> | null,
  expected: (type: string | undefined) => string,
) {
  return z.looseObject({ type: z.string().optional() }).transform((given, { issues }): T => {
    const schema = schemaOf(given.type);
    const refuse = (issue: object): never => {
      issues.push({ ...issue, input: given } as z.core.$ZodRawIssue);
      return z.NEVER;
    };
    if (schema === null) return refuse({ code: 'custom', path: ['type'], message: expected(given.type) });
    const { success, data, error } = schema.safeParse(given);
    return success ? data : refuse(error.issues[0] as object);
  });
}
