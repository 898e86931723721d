// Integers within bounds, as a rule of a grammar: those that xgrammar makes of a schema are of other ranges (from 3 on they let 1 and 2 through).
import type { Schema } from '../tools/parameters';

/** Inclusive; null: there is none. */
export interface IntegerRange {
  least: number | null;
  most: number | null;
}

const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'] as const;
const isExact = (value: unknown): value is number =>
  typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER;

/** Of a schema of integers; null: it has no bounds, or such as are no numbers or cannot be counted exactly. */
export function integerRange(schema: Schema): IntegerRange | null {
  const given = BOUNDS.filter((key) => schema[key] !== undefined);
  if (given.length === 0 || !given.every((key) => isExact(schema[key]))) return null;
  const of = (key: (typeof BOUNDS)[number], change: (bound: number) => number): number[] =>
    given.includes(key) ? [change(schema[key] as number)] : [];
  const least = [...of('minimum', Math.ceil), ...of('exclusiveMinimum', (bound) => Math.floor(bound) + 1)];
  const most = [...of('maximum', Math.floor), ...of('exclusiveMaximum', (bound) => Math.ceil(bound) - 1)];
  return {
    least: least.length === 0 ? null : Math.max(...least),
    most: most.length === 0 ? null : Math.min(...most),
  };
}

/** @throws Error of a range without integers */
export function integerRule({ least, most }: IntegerRange): string {
  if (least !== null && most !== null && least > most)
    throw new Error(`there is no integer from ${least} to ${most}`);
  const rules: string[] = [];
  if (least === null || least < 0)
    rules.push(`"-" ${positive(Math.max(1, -(most ?? -1)), least === null ? null : -least)}`);
  if ((least ?? 0) <= 0 && (most ?? 0) >= 0) rules.push('"0"');
  if (most === null || most > 0) rules.push(positive(Math.max(1, least ?? 1), most));
  return `( ${rules.join(' | ')} )`;
}

/**
 * from..to, above zero: one choice after the other, of which no two begin with the same digit. Of choices that do, xgrammar (0.1.27) makes others
 * where they are many.
 */
const positive = (from: number, to: number | null): string =>
  new Digits(String(from), to === null ? null : String(to)).after(0, 0, 0) as string;

/** How the digits so far compare with as many first ones of a bound: -1 less, 0 the same, 1 more. */
type Order = -1 | 0 | 1;

class Digits {
  private readonly known = new Map<string, string | null>();

  constructor(
    private readonly least: string,
    private readonly most: string | null,
  ) {}

  /** What may follow `count` digits; null: with these there is no number. */
  after(count: number, least: Order, most: Order): string | null {
    const key = [count, least, most].join();
    const known = this.known.get(key);
    if (known !== undefined) return known;
    const rule = this.found(count, least, most);
    this.known.set(key, rule);
    return rule;
  }

  private found(count: number, least: Order, most: Order): string | null {
    if (this.most === null && count >= this.least.length) return least < 0 ? '[0-9] [0-9]*' : '[0-9]*';
    const ends = this.mayEnd(count, least, most);
    const choices: { from: number; to: number; rest: string }[] = [];
    for (let digit = count === 0 ? 1 : 0; digit <= 9 && count !== this.most?.length; digit++) {
      const rest = this.after(
        count + 1,
        least || order(digit, this.least[count]),
        most || order(digit, this.most?.[count]),
      );
      const last = choices.at(-1);
      if (rest === null) continue;
      if (last?.rest === rest) last.to = digit;
      else choices.push({ from: digit, to: digit, rest });
    }
    if (choices.length === 0) return ends ? '' : null;
    const rules = choices.map(({ from, to, rest }) => `[${from}-${to}] ${rest}`.trim());
    return `( ${rules.join(' | ')} )${ends ? '?' : ''}`;
  }

  private mayEnd(count: number, least: Order, most: Order): boolean {
    const { length } = this.least;
    const enough = count > length || (count === length && least >= 0);
    return enough && (this.most === null || count < this.most.length || most <= 0);
  }
}

/** A number with more digits than a bound is more, whatever they are. */
const order = (digit: number, bound: string | undefined): Order =>
  bound === undefined ? 1 : (Math.sign(digit - Number(bound)) as Order);
