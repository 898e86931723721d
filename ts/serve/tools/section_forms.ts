// Calls in a section whose arguments are tags around plain text: MiniMax-M2 and Seed-OSS.
import type { Section } from './sectioned_calls';
import { begun, literal, SPACE, type TagForm } from './tag_forms';

export interface TaggedSection extends Section {
  /** Around the name of a parameter. */
  parameter: readonly [begin: string, end: string];
  parameterEnd: string;
  /** Behind the name of the tool, and behind the call. */
  nameEnd: string;
  end: string;
}

/** MiniMax-M2: <invoke name="name">\n<parameter name="key">value</parameter>\n</invoke> */
export const MINIMAX: TaggedSection = {
  open: '<minimax:tool_call>',
  call: '<invoke name="',
  nameEnd: '">',
  parameter: ['<parameter name="', '">'],
  parameterEnd: '</parameter>',
  end: '</invoke>',
  close: '</minimax:tool_call>',
};

/** Seed-OSS: <function=name>\n<parameter=key>value</parameter>\n</function> */
export const SEED: TaggedSection = {
  open: '<seed:tool_call>',
  call: '<function=',
  nameEnd: '>',
  parameter: ['<parameter=', '>'],
  parameterEnd: '</parameter>',
  end: '</function>',
  close: '</seed:tool_call>',
};

/** A name without what may end it. */
const NAME = '[^">\\n]{1,256}';

/** How the calls of a section are read, each from its name on. `ownLines`: values may stand between line breaks. */
export function sectionForm(section: TaggedSection, ownLines: boolean): TagForm {
  const { call, close, parameterEnd, nameEnd, end } = section;
  const [begin, keyEnd] = section.parameter;
  const tags = [begin, end, close, call];
  const any = tags.map(literal).join('|');
  const behind = [close, call].map(literal).join('|');
  const ended = `${literal(end)}\\s{0,8}`;
  const line = ownLines ? '\\n?' : '';
  // Of a quote and >, the quote may be there alone.
  const named = (ending: string): string => `(?:${NAME})?|${NAME}(?:${begun(ending)})`;
  return {
    bare: null,
    close: end,
    name: new RegExp(`^(${NAME})${literal(nameEnd)}${SPACE}(?=${any})`),
    nameBegins: new RegExp(`^(?:${named(nameEnd)}|${NAME}${literal(nameEnd)}${SPACE}(?:${begun(...tags)}))$`),
    tag: new RegExp(any),
    tagBegins: new RegExp(`(?:${begun(...tags)})$`),
    key: new RegExp(`^${literal(begin)}(${NAME})${literal(keyEnd)}`),
    keyBegins: new RegExp(`^${literal(begin)}(?:${named(keyEnd)})$`),
    end: new RegExp(`^(?:${literal(end)}|(?=${behind}))`),
    // A value may have the end of a call in it: it ends there only if the call does.
    valueEnd: new RegExp(
      `${line}(?:${literal(parameterEnd)}|(?=${literal(begin)})|(?:${ended})?(?=${behind}))`,
    ),
    valueEndBegins: new RegExp(
      `${line}(?:${begun(parameterEnd, ...tags)}|${ended}(?:${begun(close, call)}))$`,
    ),
    lastEnd: new RegExp(`^${line}${literal(end)}\\s*$`),
    ownLines,
    untyped: 'string',
  };
}
