import { existsSync } from 'node:fs';
import path from 'node:path';
import { withoutNames } from '../base/json_floats';
import { pointerHint } from '../base/lfs_pointer';
import { printable } from '../base/printable';
import { readTextFile } from '../base/regular_file';
import { reasonOf, show } from '../base/text';
import { TroupeError } from '../errors';

// What a Hugging Face directory says of its tokenizer besides tokenizer.json.

const SPECIAL = [
  'bos_token',
  'eos_token',
  'pad_token',
  'unk_token',
  'sep_token',
  'cls_token',
  'mask_token',
] as const;

/** null: there is no such file. @throws TroupeError INVALID_MODEL when it is no JSON object */
export function readJsonObject(file: string): Record<string, unknown> | null {
  if (!existsSync(file)) return null;
  let value: unknown;
  try {
    value = parsed(readTextFile(file));
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    const reason = printable(reasonOf(cause));
    throw new TroupeError(
      'INVALID_MODEL',
      `[data] ${file} is not valid JSON: ${reason}${pointerHint(file)}`,
      { cause },
    );
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>;
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] ${file} is not valid: expected a JSON object, got ${show(value)}`,
  );
}

/** Also with infinities by name, as Python writes them: config.json of Nemotron-H has one. @throws SyntaxError */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (!text.includes('Infinity')) throw error;
    return JSON.parse(withoutNames(text));
  }
}

/**
 * The texts of special tokens, by role: of tokenizer_config.json, else of special_tokens_map.json as older directories have them. Where neither names
 * an end, it is the first of the model's own (`eos_token_id`) that the vocabulary has.
 */
export function specialTokens(
  directory: string,
  config: Record<string, unknown>,
  tokenOf: (id: number) => string | undefined,
): Record<string, string> {
  const older = readJsonObject(path.join(directory, 'special_tokens_map.json')) ?? {};
  const special: Record<string, string> = {};
  for (const name of SPECIAL) {
    const text = tokenText(config[name]) ?? tokenText(older[name]);
    if (text !== null) special[name] = text;
  }
  if (special['eos_token'] === undefined) {
    const end = modelEnd(directory, tokenOf);
    if (end !== undefined) special['eos_token'] = end;
  }
  return special;
}

/** generation_config.json goes before config.json, as it does in generation. */
function modelEnd(directory: string, tokenOf: (id: number) => string | undefined): string | undefined {
  for (const name of ['generation_config.json', 'config.json']) {
    const given = readJsonObject(path.join(directory, name))?.['eos_token_id'];
    for (const id of Array.isArray(given) ? given : [given]) {
      const text = Number.isInteger(id) ? tokenOf(id) : undefined;
      if (text !== undefined) return text;
    }
  }
  return undefined;
}

/** A special token is a string, or an object with `content`. */
function tokenText(value: unknown): string | null {
  if (typeof value === 'string') return value;
  const content = (value as { content?: unknown } | null | undefined)?.content;
  return typeof content === 'string' ? content : null;
}

/** Sources of chat templates. */
export interface TemplateSources {
  usual: string | null;
  /** Of conversations with tools; null: the usual one. */
  toolUse: string | null;
}

/**
 * Those of files go before those of tokenizer_config.json, where there may be one, or several with names: transformers takes `tool_use` when there
 * are tools, else `default`.
 */
export function templateSources(directory: string, config: Record<string, unknown>): TemplateSources {
  const read = (...names: string[]): string | null => {
    const file = path.join(directory, ...names);
    return existsSync(file) ? readTextFile(file) : null;
  };
  const usual = read('chat_template.jinja');
  const toolUse = read('additional_chat_templates', 'tool_use.jinja');
  if (usual !== null) return { usual, toolUse };
  const inside = configTemplates(directory, config['chat_template'] ?? null);
  return toolUse === null ? inside : { usual: inside.usual, toolUse };
}

function configTemplates(directory: string, template: unknown): TemplateSources {
  if (template === null || typeof template === 'string') return { usual: template, toolUse: null };
  if (Array.isArray(template) && template.length === 0) return { usual: null, toolUse: null };
  const named = (Array.isArray(template) ? template : []) as ({
    name?: unknown;
    template?: unknown;
  } | null)[];
  const byName = (name: string) => named.find((entry) => entry?.name === name);
  const usual = (byName('default') ?? named[0])?.template;
  const toolUse = byName('tool_use')?.template ?? null;
  if (typeof usual === 'string' && (toolUse === null || typeof toolUse === 'string'))
    return { usual, toolUse };
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] ${path.join(directory, 'tokenizer_config.json')}: chat_template: expected a text, or a list of {name, template}, got ${show(template)}`,
  );
}
