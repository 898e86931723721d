import { integerExpression } from './integer_expression';

// The part of the shell's language that launch scripts of training runs are written in: assignments, arrays, quotes, ${NAME},
// ${NAME:-default}, "${NAME[@]}", $((...)), line continuations and comments. Nothing is run.

/** A word of a command; `problem`: why its text is not what the shell would make of it. */
export interface Word {
  text: string;
  problem: string | null;
}

/**
 * The command that starts verl: `verl....` or `main_ppo`, and the words after it; null when the text has no such command.
 * @param environment what the shell would have had; assignments of the text come on top
 */
export function launchWords(
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
): { program: string; words: Word[] } | null {
  let launch: { program: string; words: Word[] } | null = null;
  for (const words of new ShellReader(text, environment).commands()) {
    const at = words.findIndex(({ text: word }) => PROGRAM.test(word));
    if (at >= 0) launch = { program: (words[at] as Word).text, words: words.slice(at + 1) };
  }
  return launch;
}

/** All words of a text that is a list of key=value and nothing else. */
export function allWords(text: string, environment: Readonly<Record<string, string | undefined>>): Word[] {
  return [...new ShellReader(text, environment).commands()].flat();
}

/** A module of verl or of one of its recipes, or the file of its main program. */
const PROGRAM = /^(verl|recipe|verl_recipe)(\.\w+)+$|(^|\/)main_\w+(\.py)?$/;
const ASSIGNMENT = /^([A-Za-z_]\w*)=([\s\S]*)$/;
const NAME = /^[A-Za-z_]\w*/;
/** What stands before the bracket of an array: NAME= or NAME+=. */
const ARRAY = /^([A-Za-z_]\w*)(\+?)=$/;
/** A word that is all elements of an array. */
const ELEMENTS = /("?)\$\{([A-Za-z_]\w*)\[[@*]\]\}\1(?![^\s;&|()<>])/y;

class ShellReader {
  private at = 0;
  private readonly variables = new Map<string, Word>();
  private readonly arrays = new Map<string, readonly Word[]>();

  constructor(
    private readonly text: string,
    environment: Readonly<Record<string, string | undefined>>,
    known: ReadonlyMap<string, Word> = new Map(),
  ) {
    for (const [name, value] of Object.entries(environment))
      if (value !== undefined) this.variables.set(name, { text: value, problem: null });
    for (const [name, value] of known) this.variables.set(name, value);
  }

  /** Commands that are not assignments alone, in order. */
  *commands(): Generator<Word[]> {
    let words: Word[] = [];
    while (this.at < this.text.length) {
      const character = this.text[this.at] as string;
      if (this.text.startsWith('\\\n', this.at)) this.at += 2;
      else if (character === '#') this.skipLine();
      else if (character === '(' && this.isArray(words)) this.array(words.pop() as Word);
      else if (/[\n;&|()<>]/.test(character)) {
        // The 2 of 2>&1.
        if (character === '>' && /\s\d$/.test(this.text.slice(this.at - 2, this.at))) words.pop();
        yield* this.finished(words);
        words = [];
        this.at++;
      } else if (/\s/.test(character)) this.at++;
      else words.push(...this.words());
    }
    yield* this.finished(words);
  }

  /** Whether the bracket that comes now opens an array. */
  private isArray(words: readonly Word[]): boolean {
    return this.text[this.at - 1] === '=' && ARRAY.test(words.at(-1)?.text ?? '');
  }

  private array({ text }: Word): void {
    const [, name, added] = ARRAY.exec(text) as unknown as [string, string, string];
    const elements = added === '' ? [] : [...(this.arrays.get(name) ?? [])];
    this.at++;
    while (this.at < this.text.length && this.text[this.at] !== ')') {
      const character = this.text[this.at] as string;
      if (this.text.startsWith('\\\n', this.at)) this.at += 2;
      else if (character === '#') this.skipLine();
      else if (/[\s;&|(<>]/.test(character)) this.at++;
      else elements.push(...this.words());
    }
    this.at++;
    this.arrays.set(name, elements);
  }

  /** The next word, or the elements of an array that stand for it. */
  private words(): readonly Word[] {
    ELEMENTS.lastIndex = this.at;
    const [whole, , name] = ELEMENTS.exec(this.text) ?? [];
    if (whole === undefined || name === undefined) return [this.word()];
    this.at += whole.length;
    return this.arrays.get(name) ?? [{ text: '', problem: `holds the array ${name}, which is not set` }];
  }

  /** Assignments in front of a command hold for it alone in a shell; here for what follows, which comes to the same. */
  private *finished(words: readonly Word[]): Generator<Word[]> {
    const rest = [...words];
    if (rest[0]?.text === 'export') rest.shift();
    let assigned = ASSIGNMENT.exec(rest[0]?.text ?? '');
    while (assigned !== null) {
      const { problem } = rest.shift() as Word;
      this.variables.set(assigned[1] as string, { text: assigned[2] as string, problem });
      assigned = ASSIGNMENT.exec(rest[0]?.text ?? '');
    }
    if (rest.length > 0) yield rest;
  }

  private skipLine(): void {
    const end = this.text.indexOf('\n', this.at);
    this.at = end < 0 ? this.text.length : end;
  }

  private word(): Word {
    const word: Word = { text: '', problem: null };
    while (this.at < this.text.length) {
      const character = this.text[this.at] as string;
      if (/[\s;&|()<>]/.test(character)) break;
      if (character === "'") this.singleQuoted(word);
      else if (character === '"') this.doubleQuoted(word);
      else if (character === '\\') this.escaped(word);
      else if (character === '$') this.dollar(word);
      else if (character === '`') this.substitution(word, '`', '`');
      else {
        word.text += character;
        this.at++;
      }
    }
    return word;
  }

  private singleQuoted(word: Word): void {
    const end = this.closing("'", this.at + 1);
    word.text += this.text.slice(this.at + 1, end);
    this.at = end + 1;
  }

  private doubleQuoted(word: Word): void {
    this.at++;
    while (this.at < this.text.length && this.text[this.at] !== '"') {
      const character = this.text[this.at] as string;
      if (character === '\\' && /["\\$`\n]/.test(this.text[this.at + 1] ?? '')) this.escaped(word);
      else if (character === '$') this.dollar(word);
      else if (character === '`') this.substitution(word, '`', '`');
      else {
        word.text += character;
        this.at++;
      }
    }
    this.at++;
  }

  private escaped(word: Word): void {
    const next = this.text[this.at + 1] ?? '';
    if (next !== '\n') word.text += next;
    this.at += 2;
  }

  private dollar(word: Word): void {
    const rest = this.text.slice(this.at + 1);
    if (rest.startsWith('((')) this.arithmetic(word);
    else if (rest.startsWith('(')) this.substitution(word, '$(', ')');
    else if (rest.startsWith('{')) this.braces(word);
    else {
      const name = NAME.exec(rest)?.[0] ?? rest.slice(0, 1);
      this.at += 1 + name.length;
      if (NAME.test(name)) append(word, this.variable(name));
      else append(word, { text: '', problem: `holds $${name}, an argument of the script` });
    }
  }

  /** ${NAME}, ${NAME-default}, ${NAME:-default}; other forms, references of OmegaConf among them, stay as they are. */
  private braces(word: Word): void {
    const end = this.matching(this.at + 2, '${', '}');
    const inside = this.text.slice(this.at + 2, end);
    this.at = end + 1;
    const [, name, operator, fallback] = /^([A-Za-z_]\w*)(?:(:?-)([\s\S]*))?$/.exec(inside) ?? [];
    if (name === undefined) {
      word.text += `\${${inside}}`;
      return;
    }
    const value = this.variables.get(name);
    // With a colon an empty value is none; what is not known is not empty.
    const unset = value === undefined || (operator === ':-' && value.text === '' && value.problem === null);
    if (fallback === undefined || !unset) append(word, this.variable(name));
    else append(word, this.fallback(fallback));
  }

  private fallback(text: string): Word {
    const reader = new ShellReader(text, {}, this.variables);
    const word = reader.word();
    if (reader.at < text.length) word.problem ??= `holds a default of several words, ${text}`;
    return word;
  }

  private arithmetic(word: Word): void {
    let depth = 0;
    let end = this.at + 1;
    for (; end < this.text.length; end++) {
      if (this.text[end] === '(') depth++;
      else if (this.text[end] === ')' && --depth === 0) break;
    }
    const expression = this.text.slice(this.at + 3, end - 1);
    this.at = end + 1;
    const value = integerExpression(expression, (name) => this.variables.get(name)?.text ?? null);
    append(
      word,
      value === null
        ? { text: '', problem: `holds $((${expression})), which cannot be computed` }
        : { text: String(value), problem: null },
    );
  }

  private substitution(word: Word, open: string, close: string): void {
    const from = this.at + open.length;
    const end = close === ')' ? this.matching(from, '(', close) : this.closing(close, from);
    const program = this.text.slice(this.at, end + 1);
    this.at = end + 1;
    append(word, { text: '', problem: `holds the output of a program, ${program}` });
  }

  private closing(character: string, from: number): number {
    const end = this.text.indexOf(character, from);
    return end < 0 ? this.text.length : end;
  }

  /** Where what opened before `from` closes; what opens in between closes before it. */
  private matching(from: number, open: string, close: string): number {
    let depth = 1;
    for (let at = from; at < this.text.length; at++) {
      if (this.text[at] === '\\') at++;
      else if (this.text.startsWith(open, at)) depth++;
      else if (this.text[at] === close && --depth === 0) return at;
    }
    return this.text.length;
  }

  private variable(name: string): Word {
    const value = this.variables.get(name);
    return value ?? { text: '', problem: `holds $${name}, which is not set` };
  }
}

function append(word: Word, { text, problem }: Word): void {
  word.text += text;
  word.problem ??= problem;
}
