// How DeepSeek and Kimi K2 write calls.
import type { SeparatedForm } from './separated_body';

const NAME = '(?<name>[^\\s<`]{1,256}?)';
/** The object, or null, which stands for no arguments. */
const ARGUMENTS = '(?=\\{|null[\\s`<])';

const DEEPSEEK = {
  open: '<｜tool▁calls▁begin｜>',
  call: '<｜tool▁call▁begin｜>',
  end: '<｜tool▁call▁end｜>',
  close: '<｜tool▁calls▁end｜>',
} as const;
export const DEEPSEEK_SEPARATOR = '<｜tool▁sep｜>';

/** DeepSeek-V3 and R1: function<｜tool▁sep｜>name, and the arguments in a fence. */
export const DEEPSEEK_V3: SeparatedForm = {
  ...DEEPSEEK,
  head: new RegExp(`^\\s*(?:function)?${DEEPSEEK_SEPARATOR}\\s*${NAME}\\s*\`\`\`(?:json)?\\s*${ARGUMENTS}`),
};

/** DeepSeek-V3.1: name<｜tool▁sep｜>arguments. */
export const DEEPSEEK_V31: SeparatedForm = {
  ...DEEPSEEK,
  head: new RegExp(`^\\s*${NAME}\\s*${DEEPSEEK_SEPARATOR}\\s*${ARGUMENTS}`),
};

export const KIMI_SEPARATOR = '<|tool_call_argument_begin|>';

/**
 * Kimi K2: functions.name:number, which is the id of the call, and its arguments. Models leave the number away, or write the id as clients made
 * it over for their own alphabets (functions_name_1, functionsname1), which the tools' names tell from other ids.
 */
export const KIMI_K2: SeparatedForm = {
  open: '<|tool_calls_section_begin|>',
  call: '<|tool_call_begin|>',
  end: '<|tool_call_end|>',
  close: '<|tool_calls_section_end|>',
  head: new RegExp(`^\\s*${NAME}\\s*<\\|tool_call_argument_begin\\|>\\s*${ARGUMENTS}`),
  called(id, names) {
    const numbered = /^(?:functions\.)?(.+):\d{1,9}$/.exec(id)?.[1];
    if (numbered !== undefined) return { name: numbered, id };
    const unnumbered = /^functions\.(.+?):?$/.exec(id)?.[1];
    for (const given of [id, id.replace(/^functions[._]?/, '')]) {
      if (names.includes(given)) return { name: given };
      const [, name = '', number] = /^(.+?)[:_]?(\d{1,9})$/.exec(given) ?? [];
      if (names.includes(name)) return { name, id: `functions.${name}:${number}` };
    }
    return unnumbered === undefined ? null : { name: unnumbered };
  },
};
