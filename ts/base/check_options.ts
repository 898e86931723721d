import { TroupeError } from '../errors';
import { editDistance } from './text';

export const badOption = (where: string, message: string): TroupeError =>
  new TroupeError('INVALID_ARGUMENT', `[${where}] ${message}`);

/** Refuses option names that do not exist, naming the nearest that does: a mistyped option must never be ignored. */
export function checkOptionNames(where: string, given: unknown, known: readonly string[]): void {
  if (typeof given !== 'object' || given === null)
    throw badOption(where, `expected an options object but got ${String(given)}`);
  for (const name of Object.keys(given)) {
    if (known.includes(name)) continue;
    const nearest = [...known].sort((a, b) => editDistance(name, a) - editDistance(name, b))[0];
    throw badOption(
      where,
      `unknown option '${name}'; did you mean '${nearest}'? Options: ${known.join(', ')}`,
    );
  }
}

/** A number within bounds, or the default when it is undefined. */
export function numberOption(
  where: string,
  name: string,
  value: unknown,
  fallback: number,
  rule: { integer?: boolean; min?: number; above?: number; max?: number } = {},
): number {
  if (value === undefined) return fallback;
  const ok =
    typeof value === 'number' &&
    !Number.isNaN(value) &&
    (!rule.integer || Number.isSafeInteger(value)) &&
    (rule.min === undefined || value >= rule.min) &&
    (rule.above === undefined || value > rule.above) &&
    (rule.max === undefined || value <= rule.max);
  if (ok) return value;
  const bounds = [
    rule.min === undefined ? '' : ` >= ${rule.min}`,
    rule.above === undefined ? '' : ` > ${rule.above}`,
    rule.max === undefined ? '' : ` <= ${rule.max}`,
  ];
  throw badOption(
    where,
    `${name}: expected ${rule.integer ? 'an integer' : 'a number'}${bounds.join('')} but got ${String(value)}`,
  );
}

export function choiceOption<const T extends string>(
  where: string,
  name: string,
  value: unknown,
  choices: readonly T[],
  fallback: T,
): T {
  if (value === undefined) return fallback;
  const found = choices.find((choice) => choice === value);
  if (found === undefined)
    throw badOption(where, `${name}: expected one of ${choices.join(', ')} but got ${String(value)}`);
  return found;
}

export function flagOption(where: string, name: string, value: unknown, fallback: boolean): boolean {
  if (value === undefined) return fallback;
  if (typeof value !== 'boolean')
    throw badOption(where, `${name}: expected true or false but got ${String(value)}`);
  return value;
}
