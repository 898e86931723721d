// What `loop` is in the body of a loop.

import type { Spend } from './budget';
import { newFunction, plainValue, type Value } from './engine';
import { equal } from './values';

/** The entries of a loop one after the other. One that is left out by the loop's own condition is passed over when it is reached. */
export class Loop implements Value {
  readonly type = 'LoopContext';
  /** Equal to no other loop. */
  readonly value = {};
  private at = -1;
  private read = 0;
  private readonly passed: Value[] = [];
  private seen: readonly Value[] | null = null;

  constructor(
    private readonly items: readonly Value[],
    private readonly passes: (item: Value) => boolean,
    private readonly spend: Spend,
  ) {}

  /** undefined: it is over. */
  next(): Value | undefined {
    this.at++;
    return this.entry(this.at);
  }

  /** What the library asks for the truth of a value. */
  __bool__(): Value {
    return plainValue(true);
  }

  /** Undefined when a loop has none of this name. */
  attribute(name: unknown): Value {
    switch (name) {
      case 'index':
        return plainValue(this.at + 1);
      case 'index0':
        return plainValue(this.at);
      case 'revindex':
        return plainValue(this.length() - this.at);
      case 'revindex0':
        return plainValue(this.length() - this.at - 1);
      case 'first':
        return plainValue(this.at === 0);
      case 'last':
        return plainValue(this.entry(this.at + 1) === undefined);
      case 'length':
        return plainValue(this.length());
      case 'previtem':
        return this.passed[this.at - 1] ?? plainValue(undefined);
      case 'nextitem':
        return this.entry(this.at + 1) ?? plainValue(undefined);
      case 'depth':
        return plainValue(1);
      case 'depth0':
        return plainValue(0);
      case 'cycle':
        return newFunction((args) => this.cycle(args));
      case 'changed':
        return newFunction((args) => plainValue(this.changed(args)));
      default:
        return plainValue(undefined);
    }
  }

  private entry(at: number): Value | undefined {
    while (this.passed.length <= at && this.read < this.items.length) {
      const item = this.items[this.read++] as Value;
      if (this.passes(item)) this.passed.push(item);
    }
    return this.passed[at];
  }

  private length(): number {
    this.entry(this.items.length);
    return this.passed.length;
  }

  private cycle(args: readonly Value[]): Value {
    if (args.length === 0) throw new Error('loop.cycle() expects at least one value');
    return args[this.at % args.length] as Value;
  }

  private changed(values: readonly Value[]): boolean {
    const before = this.seen;
    this.seen = values;
    return !(
      before?.length === values.length &&
      before.every((item, i) => equal(item, values[i] as Value, this.spend))
    );
  }
}
