// What a zod schema found wrong, in one line.
import type { ZodError } from 'zod';
import { show } from '../base/text';

/** The first problem of `value`: the key, what was expected, and what is there. */
export function firstIssue(error: ZodError, value: unknown): string {
  const issue = error.issues[0];
  const path = issue?.path ?? [];
  const got = path.reduce<unknown>(
    (node, key) => (typeof node === 'object' && node !== null ? Reflect.get(node, key) : undefined),
    value,
  );
  return `${path.join('.')}: ${issue?.message}, got ${show(got)}`;
}
