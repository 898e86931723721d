// A server over an engine whose answers are given, with a byte tokenizer whose template shows what it was given.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ToolFamilyName } from '../../../ts/base/tool_formats';
import { TextThreads } from '../../../ts/data/text_threads';
import { TokenBytes } from '../../../ts/data/token_bytes';
import { Tokenizer } from '../../../ts/data/tokenizer';
import type { ServedModel } from '../../../ts/serve/call/served_model';
import { ModelServer, type ModelServerOptions } from '../../../ts/serve/model_server';
import { toolFamily } from '../../../ts/serve/tools/families';
import { type PacedEngine, pacedEngine, type Script } from '../../helpers/paced_engine';

export const END = 256;

export const TEMPLATE =
  '{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}' +
  '{% for m in messages %}{% if m.content == "forbidden" %}{{ raise_exception("not this") }}{% endif %}<{{ m.role }}>{{ m.content }}' +
  '{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.x }}){% endfor %}{% endfor %}' +
  '{% if add_generation_prompt %}<assistant>{% endif %}';

export interface Served {
  url: string;
  engine: PacedEngine;
  model: ServedModel;
  server: ModelServer;
  /** The prompt of a request as text. */
  prompt(index: number): string;
  close(): Promise<void>;
}

/** `says`: the response to a prompt. */
export async function served(
  says: (prompt: string, index: number) => string | ArrayLike<number>,
  o: {
    family?: ToolFamilyName;
    grammars?: ServedModel['grammars'];
    images?: ServedModel['images'];
    server?: Partial<ModelServerOptions>;
    script?: Partial<Script>;
  } = {},
): Promise<Served> {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-serve-'));
  const module = '../../../bench/byte_tokenizer.mjs';
  (await import(module)).writeByteTokenizer(directory);
  const tokenizer = Tokenizer.load(directory, { chatTemplate: TEMPLATE });
  const text = (ids: ArrayLike<number>): string => tokenizer.decode(ids, { skipSpecialTokens: false });
  const engine = pacedEngine({
    answer: (request) => {
      const answer = says(text(request.promptIds), engine.requests.length - 1);
      return typeof answer === 'string' ? [...tokenizer.encode(answer), END] : answer;
    },
    stopTokenIds: [END],
    ...o.script,
  });
  const texts = new TextThreads(tokenizer);
  const model: ServedModel = {
    name: 'tiny',
    created: 1,
    engine,
    vocabSize: 257,
    eosTokenIds: [END],
    tokenizer,
    bytes: new TokenBytes(tokenizer),
    texts,
    family: o.family === undefined ? null : toolFamily(o.family),
    grammars: o.grammars ?? null,
    images: o.images ?? null,
  };
  const server = new ModelServer(model, {
    host: '127.0.0.1',
    port: 0,
    apiKeys: [],
    maxBodyBytes: 100_000,
    maxRequests: 1000,
    stallMs: 60_000,
    graceMs: 5_000,
    ...o.server,
  });
  return {
    url: await server.listen(),
    engine,
    model,
    server,
    prompt: (index) => text(engine.requests[index]?.promptIds ?? []),
    close: async () => {
      await server.close();
      await texts.close();
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

/** Opens servers for the tests of a file; they are closed after each. */
export function servers(): typeof served {
  const opened: Served[] = [];
  afterEach(async () => {
    for (const one of opened.splice(0)) await one.close();
  });
  return async (...args) => {
    const one = await served(...args);
    opened.push(one);
    return one;
  };
}

export async function post(url: string, path: string, body: unknown, headers: Record<string, string> = {}) {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, text, headers: response.headers };
}

export async function until(what: () => boolean): Promise<void> {
  for (let i = 0; i < 500 && !what(); i++) await sleep(10);
  expect(what()).toBe(true);
}

// biome-ignore lint/suspicious/noExplicitAny: answers are looked at field by field.
export type Json = any;

/** The events of a stream, without its end. */
export function events(text: string): Json[] {
  const lines = text.split('\n\n').filter((line) => line !== '');
  expect(lines.at(-1)).toBe('data: [DONE]');
  return lines.slice(0, -1).map((line) => JSON.parse(line.slice('data: '.length)));
}
