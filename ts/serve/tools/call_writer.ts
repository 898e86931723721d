// Numbers the calls of a response and gives out what is new of each.
import { randomInt } from 'node:crypto';
import type { ToolCallDelta } from './tool_parser';

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
const letters = (count: number): string =>
  Array.from({ length: count }, () => LETTERS[randomInt(LETTERS.length)]).join('');

/** Mistral's templates refuse ids that do not have nine letters and digits. */
export type CallIds = 'call' | 'nine';

export class CallWriter {
  private index = -1;

  constructor(private readonly ids: CallIds) {}

  /** A call begins: its name is known. `id`: as the model wrote it, where it does. */
  begin(name: string, id = this.ids === 'nine' ? letters(9) : `call_${letters(24)}`): ToolCallDelta {
    this.index++;
    return { index: this.index, id, name, arguments: '' };
  }

  /** More arguments of the call that began last. */
  more(text: string): ToolCallDelta[] {
    return text === '' ? [] : [{ index: this.index, arguments: text }];
  }
}
