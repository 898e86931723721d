// How families of models write calls of tools; which one a model is of, its chat template says.
import { type ToolFamilyName, type ToolFormat, VERL_FORMATS } from '../../base/tool_formats';
import { BodyParser } from './body_parser';
import { gemmaContent } from './gemma_arguments';
import { GEMMA_TAGS, GemmaCall } from './gemma_call';
import { QUOTE } from './gemma_values';
import { CHANNEL, CONSTRAIN, END, HARMONY_TAGS, HarmonyParser, MESSAGE, RETURN, START } from './harmony';
import { jsonArguments } from './json_arguments';
import { Llama3Parser, PYTHON_TAG } from './llama3';
import { MISTRAL_TAGS, MistralParser } from './mistral';
import { LFM2_TAGS, OLMO3_TAGS, PythonList } from './python_list';
import { MINIMAX, SEED, sectionForm, type TaggedSection } from './section_forms';
import { SectionedCallsParser } from './sectioned_calls';
import { SeparatedBody, type SeparatedForm } from './separated_body';
import { DEEPSEEK_SEPARATOR, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, KIMI_SEPARATOR } from './separated_forms';
import { tagArguments, type WrittenCall } from './tag_arguments';
import { TagBody } from './tag_body';
import { GLM45, QWEN3_CODER, type TagForm } from './tag_forms';
import { type CallTags, CLOSE, OPEN, TaggedCallsParser } from './tagged_calls';
import { PlainText, ThoughtParser, type ThoughtTags } from './thoughts';
import type { ToolParser } from './tool_parser';

/** A tool as the OpenAI API has it. */
export interface FunctionTool {
  type: 'function';
  function: {
    name: string;
    description?: string;
    parameters?: Record<string, unknown>;
    strict?: boolean | null;
  };
}

export interface ToolFamily {
  name: ToolFamilyName;
  /** Special tokens that the parser needs to see. */
  tags: readonly string[];
  /** Of calls and text. `tools`: those that may be called, whose schemas say what a value is that is written without its type. */
  parser(tools: readonly FunctionTool[]): ToolParser;
  /** What a call of this tool looks like around its arguments. */
  frame(tool: string): { begin: string; end: string };
  /** What arguments of this tool may be, as structural tags have it. @throws UnheldParameters */
  content(tool: FunctionTool['function']): object;
  /** Its templates write arguments one by one, and fail where they are no object. */
  iterates: boolean;
  /** Between two calls; '': nothing, each begins with the first of the tags; null: several are written in another way than one. */
  separator: string | null;
  /** Its responses are messages in channels, whether or not there are tools. */
  channels?: Channels;
  /** What it thinks stands between tags, whether or not there are tools. */
  thoughts?: ThoughtTags;
  /** What its templates end a message of calls with, and nothing of the message comes behind it. */
  callsEnd?: string;
  /** Values of arguments are not JSON, and its grammar holds them to less of their schemas. */
  values?: 'bare';
}

export interface Channels {
  /** Of a response in which no tool may be called. */
  parser(): ToolParser;
  /** What comes before an answer that a grammar holds to a form. */
  answer: string;
  /** Around what is thought before it. */
  thought: { begin: string; end: string };
  /** What the template ends an answer with: that of the last turn, and one that others follow. */
  ends: { last: string; earlier: string };
}

/** How one response is read. */
export interface CallReading {
  tags: readonly string[];
  /** `thinks`: the prompt ends within a thought. */
  parser(thinks?: boolean): ToolParser;
  thoughts?: ThoughtTags;
}

/** `parser`: of what is no thought. */
export function reading(
  { thoughts }: ToolFamily,
  tags: readonly string[],
  parser: () => ToolParser,
): CallReading {
  if (thoughts === undefined) return { tags, parser };
  return { tags, thoughts, parser: (thinks) => new ThoughtParser(parser(), thoughts, thinks) };
}

/** `tools`: those that may be called. */
export const callReading = (family: ToolFamily, tools: readonly FunctionTool[]): CallReading =>
  reading(family, family.tags, () => family.parser(tools));

/** How a response is read where tools may be called, or (null) none; null: it is text. */
export function responseReading(
  family: ToolFamily | null,
  tools: readonly FunctionTool[] | null,
): CallReading | null {
  if (family === null) return null;
  if (tools !== null && tools.length > 0) return callReading(family, tools);
  const { channels, tags, thoughts } = family;
  if (channels !== undefined) return { tags, parser: () => channels.parser() };
  return thoughts === undefined
    ? null
    : reading(family, [thoughts.open, thoughts.close], () => new PlainText());
}

/** Whether its thoughts are told apart from its words, and its template has a place for those that come back. */
export const tellsThoughts = (family: ToolFamily | null): boolean =>
  family?.channels !== undefined || family?.thoughts !== undefined;

const hermes: ToolFamily = {
  name: 'hermes',
  tags: [OPEN, CLOSE],
  parser: () => new TaggedCallsParser((writer) => new BodyParser(writer)),
  frame: (tool) => ({
    begin: `<tool_call>\n{"name": ${JSON.stringify(tool)}, "arguments": `,
    end: '}\n</tool_call>',
  }),
  content: jsonArguments,
  iterates: false,
  separator: '\n',
};

/** Calls whose arguments are tags around plain text. */
const tagged = (form: TagForm, written: WrittenCall): Omit<ToolFamily, 'name' | 'tags'> => ({
  parser: (tools) =>
    new TaggedCallsParser((writer, opening) => new TagBody(form, writer, tools, opening !== ''), form.bare),
  frame: (tool) => ({ begin: OPEN + written.name(tool), end: written.end + CLOSE }),
  content: (tool) => tagArguments(form, written, tool),
  iterates: true,
  separator: '\n',
});

const qwen3Coder: ToolFamily = {
  name: 'qwen3_coder',
  tags: [OPEN, CLOSE],
  ...tagged(QWEN3_CODER, {
    name: (tool) => `\n<function=${tool}>\n`,
    parameter: { begin: (key) => `<parameter=${key}>\n`, before: '\n', close: '</parameter>', after: '\n' },
    end: '</function>\n',
  }),
};

const glm45: ToolFamily = {
  name: 'glm45',
  tags: [OPEN, CLOSE, '<arg_key>', '</arg_key>', '<arg_value>', '</arg_value>'],
  ...tagged(GLM45, {
    name: (tool) => `${tool}\n`,
    parameter: {
      begin: (key) => `<arg_key>${key}</arg_key>\n<arg_value>`,
      before: '',
      close: '</arg_value>',
      after: '\n',
    },
    end: '',
  }),
};

/** Calls in a section, whose arguments are tags around plain text. */
function taggedSection(section: TaggedSection, ownLines: boolean): Omit<ToolFamily, 'name'> {
  const form = sectionForm(section, ownLines);
  const [begin, end] = section.parameter;
  const written: WrittenCall = {
    name: (tool) => `${tool}${section.nameEnd}\n`,
    parameter: {
      begin: (key) => `${begin}${key}${end}`,
      before: '',
      close: section.parameterEnd,
      after: '\n',
    },
    end: section.end,
  };
  return {
    tags: [section.open, section.close],
    parser: (tools) => new SectionedCallsParser(section, (writer) => new TagBody(form, writer, tools, true)),
    frame: (tool) => ({
      begin: `${section.open}\n${section.call}${written.name(tool)}`,
      end: `${written.end}\n${section.close}`,
    }),
    content: (tool) => tagArguments(form, written, tool),
    iterates: true,
    separator: null,
  };
}

/** Calls in a section, each with its arguments as JSON behind its name. */
const sectioned = (form: SeparatedForm, separator: string) => ({
  tags: [form.open, form.call, separator, form.end, form.close],
  parser: (tools: readonly FunctionTool[]) => {
    const names = tools.map(({ function: { name } }) => name);
    return new SectionedCallsParser(form, (writer) => new SeparatedBody(form, writer, names));
  },
  content: jsonArguments,
  iterates: false,
  separator: null,
});

const deepseekV3: ToolFamily = {
  name: 'deepseek_v3',
  ...sectioned(DEEPSEEK_V3, DEEPSEEK_SEPARATOR),
  frame: (tool) => ({
    begin: `${DEEPSEEK_V3.open}${DEEPSEEK_V3.call}function${DEEPSEEK_SEPARATOR}${tool}\n\`\`\`json\n`,
    end: `\n\`\`\`${DEEPSEEK_V3.end}${DEEPSEEK_V3.close}`,
  }),
};

const deepseekV31: ToolFamily = {
  name: 'deepseek_v31',
  ...sectioned(DEEPSEEK_V31, DEEPSEEK_SEPARATOR),
  frame: (tool) => ({
    begin: `${DEEPSEEK_V31.open}${DEEPSEEK_V31.call}${tool}${DEEPSEEK_SEPARATOR}`,
    end: `${DEEPSEEK_V31.end}${DEEPSEEK_V31.close}`,
  }),
};

const kimiK2: ToolFamily = {
  name: 'kimi_k2',
  ...sectioned(KIMI_K2, KIMI_SEPARATOR),
  frame: (tool) => ({
    begin: `${KIMI_K2.open}${KIMI_K2.call}functions.${tool}:`,
    end: `${KIMI_K2.end}${KIMI_K2.close}`,
  }),
  // The model counts the calls of a conversation.
  content: (tool) => ({
    type: 'sequence',
    elements: [
      { type: 'regex', pattern: '[0-9]{1,4}' },
      { type: 'const_string', value: KIMI_SEPARATOR },
      jsonArguments(tool),
    ],
  }),
};

const llama3: ToolFamily = {
  name: 'llama3',
  tags: [PYTHON_TAG],
  parser: () => new Llama3Parser(),
  frame: (tool) => ({ begin: `{"name": ${JSON.stringify(tool)}, "parameters": `, end: '}' }),
  content: jsonArguments,
  iterates: false,
  separator: '; ',
};

const mistral: ToolFamily = {
  name: 'mistral',
  tags: MISTRAL_TAGS,
  parser: () => new MistralParser(),
  frame: (tool) => ({ begin: `[TOOL_CALLS] [{"name": ${JSON.stringify(tool)}, "arguments": `, end: '}]' }),
  content: jsonArguments,
  iterates: false,
  separator: null,
};

/** Calls as Python writes them between two tags. */
const pythonic = (tags: CallTags, [begin, end]: readonly [string, string]): Omit<ToolFamily, 'name'> => ({
  tags: [tags.open, tags.close],
  parser: () => new TaggedCallsParser((writer) => new PythonList(writer, tags), null, tags),
  // JSON, which has a schema, is read there, too.
  frame: (tool) => ({
    begin: `${tags.open}${begin}{"name": ${JSON.stringify(tool)}, "arguments": `,
    end: `}${end}${tags.close}`,
  }),
  content: jsonArguments,
  iterates: true,
  separator: null,
});

const gemma4: ToolFamily = {
  name: 'gemma4',
  tags: [GEMMA_TAGS.open, GEMMA_TAGS.close, QUOTE, '<|channel>', '<channel|>'],
  parser: () => new TaggedCallsParser((writer) => new GemmaCall(writer), null, GEMMA_TAGS),
  frame: (tool) => ({ begin: `${GEMMA_TAGS.open}call:${tool}{`, end: `}${GEMMA_TAGS.close}` }),
  content: gemmaContent,
  iterates: true,
  separator: '',
  thoughts: { open: '<|channel>', label: 'thought\n', close: '<channel|>', call: GEMMA_TAGS.open },
  callsEnd: '<|tool_response>',
  values: 'bare',
};

const harmony: ToolFamily = {
  name: 'gpt-oss',
  tags: HARMONY_TAGS,
  parser: (tools) => new HarmonyParser(tools.map(({ function: { name } }) => name)),
  // The tag that ends it is one of the tokens that end a response.
  frame: (tool) => ({
    begin: `${CHANNEL}commentary to=functions.${tool} ${CONSTRAIN}json${MESSAGE}`,
    end: '',
  }),
  content: jsonArguments,
  iterates: false,
  separator: null,
  channels: {
    parser: () => new HarmonyParser(null),
    answer: `${CHANNEL}final${MESSAGE}`,
    thought: { begin: `${CHANNEL}analysis${MESSAGE}`, end: `${END}${START}assistant` },
    ends: { last: RETURN, earlier: END },
  },
};

const FAMILIES: Readonly<Record<ToolFamilyName, ToolFamily>> = {
  hermes,
  qwen3_coder: qwen3Coder,
  glm45,
  minimax_m2: { name: 'minimax_m2', ...taggedSection(MINIMAX, false) },
  seed_oss: { name: 'seed_oss', ...taggedSection(SEED, true) },
  deepseek_v3: deepseekV3,
  deepseek_v31: deepseekV31,
  kimi_k2: kimiK2,
  llama3,
  mistral,
  lfm2: { name: 'lfm2', ...pythonic(LFM2_TAGS, ['[', ']']) },
  olmo3: { name: 'olmo3', ...pythonic(OLMO3_TAGS, ['', '']) },
  gemma4,
  'gpt-oss': harmony,
};

/** By its own name, or that of verl. */
export const familyOfFormat = (format: ToolFormat): ToolFamily =>
  FAMILIES[
    format in VERL_FORMATS ? VERL_FORMATS[format as keyof typeof VERL_FORMATS] : (format as ToolFamilyName)
  ];

export const toolFamily = (name: ToolFamilyName): ToolFamily => FAMILIES[name];

/** By the tags that a chat template writes; null: it knows no tools. */
export function familyOf(chatTemplate: string | null): ToolFamily | null {
  if (chatTemplate === null) return null;
  if (chatTemplate.includes(CHANNEL)) return harmony;
  if (/\[(?:AVAILABLE_TOOLS|TOOL_CALLS)\]/.test(chatTemplate)) return mistral;
  if (chatTemplate.includes(MINIMAX.open)) return FAMILIES.minimax_m2;
  if (chatTemplate.includes(SEED.open)) return FAMILIES.seed_oss;
  if (chatTemplate.includes(KIMI_K2.open)) return kimiK2;
  if (chatTemplate.includes(LFM2_TAGS.open) || chatTemplate.includes('<|tool_list_start|>'))
    return FAMILIES.lfm2;
  if (chatTemplate.includes(OLMO3_TAGS.open)) return FAMILIES.olmo3;
  if (chatTemplate.includes(GEMMA_TAGS.open)) return gemma4;
  // Templates of DeepSeek-R1, and of what was distilled from it, write calls, but show no tools.
  if (chatTemplate.includes(DEEPSEEK_V31.open) && /\btools\b/.test(chatTemplate))
    return chatTemplate.includes('```json') ? deepseekV3 : deepseekV31;
  if (chatTemplate.includes(OPEN)) {
    if (chatTemplate.includes('<function=')) return qwen3Coder;
    return chatTemplate.includes('<arg_key>') ? glm45 : hermes;
  }
  if (chatTemplate.includes(PYTHON_TAG) || /<\|start_header_id\|>[\s\S]*ipython/.test(chatTemplate))
    return llama3;
  return null;
}
