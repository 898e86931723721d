import { existsSync } from 'node:fs';
import path from 'node:path';
import { printable } from '../base/printable';
import { readRegularFile } from '../base/regular_file';
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
    value = JSON.parse(readRegularFile(file));
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    const reason = printable(reasonOf(cause));
    throw new TroupeError('INVALID_MODEL', `[data] ${file} is not valid JSON: ${reason}`, { cause });
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>;
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] ${file} is not valid: expected a JSON object, got ${show(value)}`,
  );
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

export function templateSource(directory: string, config: Record<string, unknown>): string | null {
  const file = path.join(directory, 'chat_template.jinja');
  if (existsSync(file)) return readRegularFile(file);
  const template = config['chat_template'] ?? null;
  if (template === null || typeof template === 'string') return template;
  if (Array.isArray(template) && template.length === 0) return null;
  // Several named templates: the default one.
  const named = (Array.isArray(template) ? template : []) as ({
    name?: unknown;
    template?: unknown;
  } | null)[];
  const chosen = (named.find((entry) => entry?.name === 'default') ?? named[0])?.template;
  if (typeof chosen === 'string') return chosen;
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] ${path.join(directory, 'tokenizer_config.json')}: chat_template: expected a text, or a list of {name, template}, got ${show(template)}`,
  );
}
