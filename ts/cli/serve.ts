// `troupe serve MODEL`: the OpenAI API over our own engine, until a signal ends it.
import { basename, resolve } from 'node:path';
import { Actor } from '../actor/actor';
import { readRegularFile } from '../base/regular_file';
import { loadModelDirectory } from '../checkpoint/model_dir';
import { TokenBytes } from '../data/token_bytes';
import { checkVocabulary, Tokenizer } from '../data/tokenizer';
import type { ServedModel } from '../serve/call/served_model';
import { GrammarThreads, grammarVocabulary } from '../serve/grammar/grammar_threads';
import { ModelServer, type ModelServerOptions } from '../serve/model_server';
import { type FamilyName, familyOf, toolFamily } from '../serve/tools/families';
import { Requests } from './requests';

export interface ServeOptions {
  /** Hugging Face directory with model and tokenizer. */
  model: string;
  /** What requests call it; null: the directory's name. */
  servedName: string | null;
  /** null: as the chat template says. */
  toolParser: FamilyName | null;
  /** A file with a chat template; null: that of the tokenizer. */
  chatTemplate: string | null;
  device: 'cpu' | 'cuda' | null;
  dtype: 'float32' | 'bfloat16' | null;
  workers: number;
  server: ModelServerOptions;
}

/** Tokens that a micro-batch may always hold. */
const MIN_CAPACITY = 4096;

/** Returns the exit code once a signal has ended it. @throws TroupeError when its workers fail, so that whoever watches it starts it again */
export async function serve(
  options: ServeOptions,
  say: (line: string) => void = (line) => process.stderr.write(`troupe: ${line}\n`),
): Promise<number> {
  const { model: directory } = options;
  const { config } = loadModelDirectory(directory, 'lm');
  const { chatTemplate } = options;
  const tokenizer = Tokenizer.load(directory, {
    chatTemplate: chatTemplate === null ? null : readRegularFile(chatTemplate),
  });
  checkVocabulary(tokenizer, config.vocabSize, directory);
  const actor = await Actor.create({
    model: directory,
    optim: null,
    worldSize: options.workers,
    maxTokensPerMicroBatch: Math.max(MIN_CAPACITY, config.maxPositions),
    ...(options.device === null ? {} : { device: options.device }),
    ...(options.dtype === null ? {} : { dtype: options.dtype }),
  });
  const closers: (() => Promise<void>)[] = [() => actor.close()];
  try {
    const family =
      options.toolParser === null ? familyOf(tokenizer.chatTemplate) : toolFamily(options.toolParser);
    const bytes = new TokenBytes(tokenizer);
    const grammars = new GrammarThreads(
      grammarVocabulary(tokenizer, bytes, {
        vocabSize: config.vocabSize,
        stopTokenIds: actor.eosTokenIds,
        tags: family?.tags ?? [],
      }),
    );
    closers.unshift(() => grammars.close());
    const model: ServedModel = {
      name: options.servedName ?? basename(resolve(directory)),
      created: Math.floor(Date.now() / 1000),
      engine: actor.rollout,
      eosTokenIds: actor.eosTokenIds,
      tokenizer,
      bytes,
      family,
      grammars,
    };
    const server = new ModelServer(model, options.server);
    const url = await server.listen();
    say(`serving ${model.name} at ${url}/v1 (${family === null ? 'no tools' : `tools as ${family.name}`})`);
    if (options.server.apiKeys.length === 0) say('there is no API key: everybody who can connect may ask');
    const failed = actor.engine.group.failed.then((error): never => {
      throw error;
    });
    try {
      await Promise.race([signalled(say), failed]);
    } finally {
      await server.close();
    }
    return 0;
  } finally {
    for (const close of closers) await close();
  }
}

/** The first SIGINT or SIGTERM ends the server once what runs is done; a later one at once. */
function signalled(say: (line: string) => void): Promise<void> {
  return new Promise((done) => {
    const requests = new Requests();
    const listener = (signal: NodeJS.Signals): void => {
      const request = requests.take();
      if (request === 'again') process.exit(130);
      if (request !== 'first') return;
      say(`${signal}: ending once what runs is done; once more leaves at once`);
      done();
    };
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, listener);
  });
}
