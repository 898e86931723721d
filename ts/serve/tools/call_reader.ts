// One JSON object {"name": …, "arguments": {…}}, character by character, whose arguments are given out before it is complete.

const SPACE = /\s/;
/** What a closing tag begins with. */
const TAG = '<';
/** Names of the arguments in the families. */
const ARGUMENTS = ['arguments', 'parameters'];

/**
 * The end of one JSON value: nested objects and arrays, strings with escapes. It does not check what it passes, but for what may begin another
 * call: a bracket that is missing hides none behind this one.
 */
export class ValueEnd {
  /** Brackets that are open. */
  private readonly open: string[] = [];
  /** The last character that is no space. */
  private last = '';
  inString = false;
  private escaped = false;
  private first = '';

  /** `ends`: characters that end it outside of strings, where they are no part of JSON: { in the place of a key, ] without a [. */
  constructor(private readonly ends = TAG) {}

  /** Whether the value ends with this character (true), before it ('before'), or goes on. */
  take(c: string): boolean | 'before' {
    if (this.first === '') this.first = c;
    if (this.inString) {
      if (this.escaped) this.escaped = false;
      else if (c === '\\') this.escaped = true;
      else if (c === '"') {
        this.inString = false;
        return this.open.length === 0;
      }
      return false;
    }
    if (this.ends.includes(c) && this.isAmiss(c)) return 'before';
    if (!SPACE.test(c)) this.last = c;
    if (c === '"') this.inString = true;
    else if (c === '{' || c === '[') this.open.push(c);
    else if (c === '}' || c === ']') {
      if (this.open.length === 0) return 'before';
      this.open.pop();
      return this.open.length === 0;
    } else if (this.open.length === 0 && (c === ',' || SPACE.test(c))) return 'before';
    return false;
  }

  private isAmiss(c: string): boolean {
    if (c === '{') return (this.last === ',' || this.last === '{') && this.open.at(-1) === '{';
    return c !== ']' || this.open.at(-1) !== '[';
  }
}

type Expected = 'object' | 'key' | 'colon' | 'value' | 'next' | 'done' | 'failed';

export class CallReader {
  name: string | null = null;
  private expected: Expected = 'object';
  private key = '';
  /** Of the key or value that is being read. */
  private source = '';
  private value: ValueEnd | null = null;
  /** JSON of the arguments that nobody has taken yet. */
  private pending = '';
  private sawArguments = false;
  /** Arguments that are an object pass through as they are, also where they are no JSON. */
  private streams = false;

  /** `bare`: a name alone is a call, of a tool without arguments. `ends`: as in ValueEnd; where one comes amiss it is left. */
  constructor(
    private readonly bare: boolean,
    private readonly ends = TAG,
  ) {}

  get done(): boolean {
    return this.expected === 'done';
  }

  /** It is no call. */
  get failed(): boolean {
    return this.expected === 'failed';
  }

  /** Reads until the object ends or fails; returns how many characters it has taken. */
  push(text: string): number {
    let taken = 0;
    while (taken < text.length && !this.done && !this.failed) {
      if (this.take(text[taken] as string)) taken++;
    }
    return taken;
  }

  /** What is new of the arguments; they wait for the name. */
  takeArguments(): string {
    if (this.name === null) return '';
    const more = this.pending;
    this.pending = '';
    return more;
  }

  /** Whether the character was used; one that ends a number, or may begin a tag or a call, is looked at again. */
  private take(c: string): boolean {
    if (this.value !== null) return this.takeOfValue(c);
    if (SPACE.test(c)) return true;
    this.expect(c);
    return !(this.failed && this.ends.includes(c));
  }

  private expect(c: string): void {
    switch (this.expected) {
      case 'object':
        this.expected = c === '{' ? 'key' : 'failed';
        return;
      case 'key':
        if (c === '"') this.begin(c);
        else this.expected = c === '}' ? this.ended() : 'failed';
        return;
      case 'colon':
        this.expected = c === ':' ? 'value' : 'failed';
        return;
      case 'value':
        if (',}]'.includes(c) || (c !== '{' && this.ends.includes(c))) this.expected = 'failed';
        else this.begin(c);
        return;
      default:
        this.expected = c === ',' ? 'key' : c === '}' ? this.ended() : 'failed';
    }
  }

  private begin(c: string): void {
    this.value = new ValueEnd(this.ends);
    this.source = '';
    this.streams = this.isArguments && c === '{';
    this.takeOfValue(c);
  }

  /** Whether the value that begins or has ended is that; the first one counts. */
  private get isArguments(): boolean {
    return this.expected === 'value' && ARGUMENTS.includes(this.key) && !this.sawArguments;
  }

  private takeOfValue(c: string): boolean {
    const end = (this.value as ValueEnd).take(c);
    if (end !== 'before') {
      if (this.streams) this.pending += c;
      else this.source += c;
    }
    if (end !== false) {
      this.value = null;
      this.endValue();
    }
    return end !== 'before';
  }

  private endValue(): void {
    if (this.streams) {
      this.sawArguments = true;
      this.expected = 'next';
      return;
    }
    let value: unknown;
    try {
      value = JSON.parse(this.source);
    } catch {
      this.expected = 'failed';
      return;
    }
    if (this.expected === 'key') {
      this.key = value as string;
      this.expected = 'colon';
      return;
    }
    const isArguments = this.isArguments;
    this.expected = 'next';
    if (this.key === 'name') {
      if (typeof value === 'string' && value !== '') this.name = value;
      else this.expected = 'failed';
    } else if (isArguments) {
      this.sawArguments = true;
      if (typeof value === 'string') this.pending += value;
      else if (value === null) this.pending += '{}';
      else if (typeof value !== 'object' || Array.isArray(value)) this.expected = 'failed';
    }
  }

  private ended(): Expected {
    if (this.name === null || !(this.sawArguments || this.bare)) return 'failed';
    if (!this.sawArguments) this.pending += '{}';
    return 'done';
  }
}
