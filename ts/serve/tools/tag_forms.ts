// Calls whose arguments are tags around plain text: how families write the parts of one.
import { CLOSE, OPEN } from './tagged_calls';

export const literal = (text: string): string => text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&');
/** Whatever one of these texts may be so far, nothing included. */
export const begun = (...texts: string[]): string =>
  texts.flatMap((text) => Array.from(text, (_, i) => literal(text.slice(0, i)))).join('|');

export interface TagForm {
  /** Where a call begins without a tag around it, too. */
  bare: string | null;
  /** Behind a call, whatever else is left out. */
  close: string;
  /** The tool's name, up to a tag that may follow it. */
  name: RegExp;
  /** All that may become one. */
  nameBegins: RegExp;
  /** Anywhere: the next tag of a call. */
  tag: RegExp;
  /** What a tag that is not complete looks like, at the end of a text. */
  tagBegins: RegExp;
  /** A parameter's name, up to its value. */
  key: RegExp;
  keyBegins: RegExp;
  /** No parameter follows. */
  end: RegExp;
  /** Anywhere: the end of a value; without its own tag, what comes after it. */
  valueEnd: RegExp;
  /** As tagBegins. */
  valueEndBegins: RegExp;
  /** A value that the response ends with is complete when this is behind it. */
  lastEnd: RegExp | null;
  /** A line break behind the tag that opens a value is no part of it. */
  ownLines: boolean;
  /** A value whose type no schema says: JSON where it is some; else text. */
  untyped: 'json' | 'string';
}

/** Of names, and white space: more is no call, and need not be kept. */
const NAME = '[^>\\n]{1,256}';
export const SPACE = '\\s{0,64}';

const FUNCTION = '<function=';
const FUNCTION_END = '</function>';
const PARAMETER = '<parameter=';
const PARAMETER_END = '</parameter>';
const QWEN_TAGS = [PARAMETER, FUNCTION_END, CLOSE, OPEN];
const FUNCTION_CLOSE = `${FUNCTION_END}\\s{0,8}`;

/** Qwen3-Coder and Qwen3.5: <function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>. */
export const QWEN3_CODER: TagForm = {
  bare: FUNCTION,
  close: CLOSE,
  name: new RegExp(`^${SPACE}${FUNCTION}(${NAME})>${SPACE}(?=${QWEN_TAGS.join('|')})`),
  nameBegins: new RegExp(
    `^${SPACE}(?:${begun(FUNCTION)}|${FUNCTION}(?:${NAME})?|${FUNCTION}${NAME}>${SPACE}(?:${begun(...QWEN_TAGS)}))$`,
  ),
  tag: new RegExp(QWEN_TAGS.join('|')),
  tagBegins: new RegExp(`(?:${begun(...QWEN_TAGS)})$`),
  key: new RegExp(`^${PARAMETER}(${NAME})>`),
  keyBegins: new RegExp(`^${PARAMETER}(?:${NAME})?$`),
  end: new RegExp(`^(?:${FUNCTION_END}|(?=${CLOSE}|${OPEN}))`),
  // A value may have </function> in it: it ends there only if the call does.
  valueEnd: new RegExp(`\\n?(?:${PARAMETER_END}|(?=${PARAMETER})|(?:${FUNCTION_CLOSE})?(?=${CLOSE}))`),
  valueEndBegins: new RegExp(
    `\\n?(?:${begun(PARAMETER_END, PARAMETER, CLOSE, FUNCTION_END)}|${FUNCTION_CLOSE}(?:${begun(CLOSE)}))$`,
  ),
  lastEnd: new RegExp(`^\\n?${FUNCTION_END}\\s*$`),
  ownLines: true,
  untyped: 'string',
};

const KEY = '<arg_key>';
const KEY_END = '</arg_key>';
const VALUE = '<arg_value>';
const VALUE_END = '</arg_value>';
const GLM_TAGS = [KEY, CLOSE, OPEN];
const GLM_NAME = '[^\\s<>{}()"\']{1,256}';
const GLM_KEY = '[^<]{1,256}';

/** GLM-4.5 and later: name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n, with or without the line breaks. */
export const GLM45: TagForm = {
  bare: null,
  close: CLOSE,
  name: new RegExp(`^${SPACE}(${GLM_NAME})${SPACE}(?=${KEY}|${CLOSE})`),
  nameBegins: new RegExp(`^${SPACE}(?:${GLM_NAME}${SPACE}(?:${begun(KEY, CLOSE)}))?$`),
  tag: new RegExp(GLM_TAGS.join('|')),
  tagBegins: new RegExp(`(?:${begun(...GLM_TAGS)})$`),
  key: new RegExp(`^${KEY}(${GLM_KEY})${KEY_END}${SPACE}${VALUE}`),
  keyBegins: new RegExp(
    `^${KEY}(?:(?:${GLM_KEY})?|${GLM_KEY}(?:${begun(KEY_END)})|${GLM_KEY}${KEY_END}${SPACE}(?:${begun(VALUE)}))$`,
  ),
  end: new RegExp(`^(?=${CLOSE}|${OPEN})`),
  valueEnd: new RegExp(`${VALUE_END}|\\n?(?=${KEY}|${CLOSE})`),
  valueEndBegins: new RegExp(`\\n?(?:${begun(VALUE_END, KEY, CLOSE)})$`),
  lastEnd: null,
  ownLines: false,
  untyped: 'json',
};
