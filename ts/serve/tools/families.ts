// How families of models write calls of tools; which one a model is of, its chat template says.
import { HermesParser } from './hermes';
import { Llama3Parser, PYTHON_TAG } from './llama3';
import { MISTRAL_TAGS, MistralParser } from './mistral';
import type { ToolParser } from './tool_parser';

export const FAMILY_NAMES = ['hermes', 'llama3', 'mistral'] as const;
export type FamilyName = (typeof FAMILY_NAMES)[number];

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
  name: FamilyName;
  /** Special tokens that the parser needs to see. */
  tags: readonly string[];
  parser(): ToolParser;
  /** What a call of this tool looks like around the JSON of its arguments. */
  frame(tool: string): { begin: string; end: string };
  /** Between two calls; null: several are written in another way than one. */
  separator: string | null;
}

const hermes: ToolFamily = {
  name: 'hermes',
  tags: ['<tool_call>', '</tool_call>'],
  parser: () => new HermesParser(),
  frame: (tool) => ({
    begin: `<tool_call>\n{"name": ${JSON.stringify(tool)}, "arguments": `,
    end: '}\n</tool_call>',
  }),
  separator: '\n',
};

const llama3: ToolFamily = {
  name: 'llama3',
  tags: [PYTHON_TAG],
  parser: () => new Llama3Parser(),
  frame: (tool) => ({ begin: `{"name": ${JSON.stringify(tool)}, "parameters": `, end: '}' }),
  separator: '; ',
};

const mistral: ToolFamily = {
  name: 'mistral',
  tags: MISTRAL_TAGS,
  parser: () => new MistralParser(),
  frame: (tool) => ({ begin: `[TOOL_CALLS] [{"name": ${JSON.stringify(tool)}, "arguments": `, end: '}]' }),
  separator: null,
};

const FAMILIES: Readonly<Record<FamilyName, ToolFamily>> = { hermes, llama3, mistral };

export const toolFamily = (name: FamilyName): ToolFamily => FAMILIES[name];

/** By the tags that a chat template writes; null: it knows no tools. */
export function familyOf(chatTemplate: string | null): ToolFamily | null {
  if (chatTemplate === null) return null;
  if (/\[(?:AVAILABLE_TOOLS|TOOL_CALLS)\]/.test(chatTemplate)) return mistral;
  if (chatTemplate.includes('<tool_call>')) return hermes;
  if (chatTemplate.includes(PYTHON_TAG) || /<\|start_header_id\|>[\s\S]*ipython/.test(chatTemplate))
    return llama3;
  return null;
}
