// One call as Python writes it: name(key=value, …).
import { pythonArguments } from './python_literals';

/** A character of a name. */
export const NAME = /[\w.$-]|[^\0-\x7f]/;
const LONGEST_NAME = 256;
const PAIRS: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}' };

/** Character by character. Its end is that of its brackets; what is between them is read when it is complete. */
export class PythonCall {
  source = '';
  /** Where the arguments begin; 0: the name goes on. */
  private begin = 0;
  private readonly open: string[] = [];
  /** Of a text: one quotation mark or three. '' outside of texts. */
  private quote = '';
  private escaped = false;
  /** Marks in a row that may end a text, or begin one of three. */
  private marks = 0;

  /** Whether this character ends the call (true), cannot be a part of it ('failed'), or it goes on. */
  take(c: string): boolean | 'failed' {
    if (this.begin === 0) {
      if (c !== '(' ? !NAME.test(c) || this.source.length === LONGEST_NAME : this.source === '')
        return 'failed';
      if (c === '(') this.begin = this.source.length + 1;
      if (c === '(') this.open.push(')');
      this.source += c;
      return false;
    }
    const ended = this.takeOfArguments(c);
    if (ended !== 'failed') this.source += c;
    return ended;
  }

  get name(): string {
    return this.source.slice(0, this.begin - 1);
  }

  /** JSON; null: they are no literals. */
  get arguments(): string | null {
    return pythonArguments(this.source.slice(this.begin, -1));
  }

  private takeOfArguments(c: string): boolean | 'failed' {
    if (this.quote !== '') {
      const again = this.takeOfText(c);
      if (!again) return false;
    }
    if (c === '"' || c === "'") {
      this.quote = c;
      this.marks = 1;
    } else if (c === '<') return 'failed';
    else if (Object.hasOwn(PAIRS, c)) this.open.push(PAIRS[c] as string);
    else if (')]}'.includes(c)) {
      if (this.open.pop() !== c) return 'failed';
      return this.open.length === 0;
    }
    return false;
  }

  /** Whether the character stands behind the text: a text without characters is seen to end there. */
  private takeOfText(c: string): boolean {
    const mark = this.quote[0] as string;
    const begins = this.marks > 0 && this.quote.length === 1;
    if (begins) {
      // One mark has come, or two: a third one begins a text between three of them.
      if (c === mark) {
        this.marks++;
        if (this.marks === 3) {
          this.quote = mark.repeat(3);
          this.marks = 0;
        }
        return false;
      }
      const empty = this.marks === 2;
      this.marks = 0;
      if (empty) {
        this.quote = '';
        return true;
      }
    }
    if (this.escaped) this.escaped = false;
    else if (c === '\\') {
      this.escaped = true;
      this.marks = 0;
    } else if (c !== mark) this.marks = 0;
    else if (this.quote.length === 1 || ++this.marks === 3) {
      this.quote = '';
      this.marks = 0;
    }
    return false;
  }
}
