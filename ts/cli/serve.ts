// `troupe serve MODEL`: the APIs of OpenAI and Anthropic over our own engine, until a signal ends it.

import { basename, resolve } from 'node:path';
import { Actor } from '../actor/actor';
import { readTextFile } from '../base/regular_file';
import type { ToolFamilyName } from '../base/tool_formats';
import { type LoadedModel, loadModelDirectory } from '../checkpoint/model_dir';
import { endTokenIds } from '../data/end_tokens';
import { ImageThreads } from '../data/images/image_threads';
import { TextThreads } from '../data/text_threads';
import { TokenBytes } from '../data/token_bytes';
import { checkVocabulary, Tokenizer } from '../data/tokenizer';
import { hasImageProcessor, readImageProcessor } from '../model/image_processor';
import { latentCacheProblem } from '../model/latent_cache';
import { tensorProblem } from '../model/tensor_parts';
import type { RolloutEngine } from '../rollout/engine';
import type { SpeculativeConfig } from '../rollout/native/speculative_options';
import type { ServedModel } from '../serve/call/served_model';
import { GrammarThreads, grammarVocabulary } from '../serve/grammar/grammar_threads';
import { ModelServer, type ModelServerOptions } from '../serve/model_server';
import { familyOf, toolFamily } from '../serve/tools/families';
import { UsageError } from './report';
import { askedToEnd } from './requests';

export interface ServeOptions {
  /** Hugging Face directory with model and tokenizer. */
  model: string;
  /** What requests call it; null: the directory's name. */
  servedName: string | null;
  /** null: as the chat template says. */
  toolParser: ToolFamilyName | null;
  /** A file with a chat template; null: that of the tokenizer. */
  chatTemplate: string | null;
  device: 'cpu' | 'cuda' | null;
  dtype: 'float32' | 'bfloat16' | null;
  workers: number;
  /** So many of them have a part of every matrix each and answer together. */
  tensorParallel: number;
  /** Most tokens of a prompt and its response; null: what the model and the cache have room for. */
  maxModelLen: number | null;
  /** Share of memory for keys and values; null: the engine's default. */
  gpuMemoryUtilization: number | null;
  /** null: latents are kept where the model has latent attention. */
  latentCache: boolean | null;
  /** Drafted per request and step; 0: none. */
  numSpeculativeTokens: number;
  /** Where drafts come from. */
  speculativeMethod: SpeculativeConfig['method'];
  /** null: images are read where the model has a tower for them. */
  readImages: boolean | null;
  /** `maxBodyBytes` null: there is room for text, or for images where they are read. */
  server: Omit<ModelServerOptions, 'maxBodyBytes'> & { maxBodyBytes: number | null };
}

/** Of a request; images are a third larger in it than their files. */
const TEXT_BYTES = 8 * 2 ** 20;
const IMAGE_BYTES = 32 * 2 ** 20;

/** Tokens that a micro-batch may always hold. */
const MIN_CAPACITY = 4096;

/** Returns the exit code once a signal has ended it. @throws TroupeError when its workers fail, so that whoever watches it starts it again */
export async function serve(
  options: ServeOptions,
  say: (line: string) => void = (line) => process.stderr.write(`troupe: ${line}\n`),
): Promise<number> {
  const { model: directory } = options;
  const { readsImages, config, eosTokenIds } = servedDirectory(directory, options);
  const { chatTemplate, maxModelLen, gpuMemoryUtilization, numSpeculativeTokens, tensorParallel } = options;
  if (maxModelLen !== null && maxModelLen > config.maxPositions) {
    throw new UsageError(
      `serve: --max-model-len: expected at most ${config.maxPositions}, the positions of the model, got ${maxModelLen}`,
    );
  }
  const problem = tensorProblem(tensorParallel, config);
  if (problem !== null)
    throw new UsageError(`serve: --tensor-parallel-size: ${problem} of the model, got ${tensorParallel}`);
  const noLatents = latentCacheProblem(config);
  if (options.latentCache === true && noLatents !== null)
    throw new UsageError(`serve: --latent-cache: ${noLatents}: leave it out`);
  const tokenizer = Tokenizer.load(directory, {
    chatTemplate: chatTemplate === null ? null : readTextFile(chatTemplate),
  });
  checkVocabulary(tokenizer, config.vocabSize, directory);
  const actor = await Actor.create({
    model: directory,
    optim: null,
    readsImages: config.vision !== null,
    ...(config.prediction === null ? {} : { mtp: { train: false } }),
    worldSize: options.workers,
    maxTokensPerMicroBatch: Math.max(MIN_CAPACITY, config.maxPositions),
    ...(options.device === null ? {} : { device: options.device }),
    ...(options.dtype === null ? {} : { dtype: options.dtype }),
    rollout: {
      // Nobody else wants the memory, and the next request may begin like one before it.
      freeCacheEngine: false,
      tensorParallel,
      latentCache: options.latentCache ?? noLatents === null,
      eosTokenIds: endTokenIds(eosTokenIds, tokenizer),
      ...(maxModelLen === null ? {} : { maxModelLen }),
      ...(gpuMemoryUtilization === null ? {} : { gpuMemoryUtilization }),
      ...(numSpeculativeTokens === 0
        ? {}
        : { speculative: { method: options.speculativeMethod, numSpeculativeTokens } }),
    },
  });
  const closers: (() => Promise<void>)[] = [() => actor.close()];
  try {
    await openCache(actor.rollout);
    checkRoom(actor.rollout.maxTokens, maxModelLen, config.maxPositions, say);
    const family =
      options.toolParser === null ? familyOf(tokenizer.toolTemplate) : toolFamily(options.toolParser);
    const bytes = new TokenBytes(tokenizer);
    const grammars = new GrammarThreads(
      grammarVocabulary(tokenizer, bytes, {
        vocabSize: config.vocabSize,
        stopTokenIds: actor.eosTokenIds,
        tags: family?.tags ?? [],
      }),
    );
    closers.unshift(() => grammars.close());
    const texts = new TextThreads(tokenizer);
    closers.unshift(() => texts.close());
    const images =
      config.vision === null || !readsImages
        ? null
        : new ImageThreads({ ...readImageProcessor(directory), imageToken: config.vision.imageToken });
    if (images !== null) closers.unshift(() => images.close());
    const model: ServedModel = {
      name: options.servedName ?? basename(resolve(directory)),
      created: Math.floor(Date.now() / 1000),
      engine: actor.rollout,
      vocabSize: config.vocabSize,
      eosTokenIds: actor.eosTokenIds,
      tokenizer,
      bytes,
      texts,
      family,
      grammars,
      images,
    };
    const maxBodyBytes = options.server.maxBodyBytes ?? (images === null ? TEXT_BYTES : IMAGE_BYTES);
    const server = new ModelServer(model, { ...options.server, maxBodyBytes });
    const url = await server.listen();
    const does = [
      family === null ? 'no tools' : `tools as ${family.name}`,
      ...(images === null ? [] : ['reads images']),
    ];
    const asked = askedToEnd();
    say(`serving ${model.name} at ${url}/v1 (${does.join(', ')})`);
    if (options.server.apiKeys.length === 0) say('there is no API key: everybody who can connect may ask');
    const failed = actor.engine.group.failed.then((error): never => {
      throw error;
    });
    try {
      const signal = await Promise.race([asked, failed]);
      say(`${signal}: ending once what runs is done; once more leaves at once`);
    } finally {
      await server.close();
    }
    return 0;
  } finally {
    for (const close of closers) await close();
  }
}

/** A model with the tower for images that it has, or the language model alone. @throws UsageError where it has none and is asked for it */
function servedDirectory(
  directory: string,
  { readImages: asked, numSpeculativeTokens, speculativeMethod }: ServeOptions,
): LoadedModel & { readsImages: boolean } {
  const drafts = speculativeMethod === 'mtp' && numSpeculativeTokens > 0;
  const loaded = loadModelDirectory(directory, 'lm', {
    readsImages: asked ?? hasImageProcessor(directory),
    predictions: drafts ? 'held' : null,
  });
  const found = loaded.config.vision !== null;
  if (found && drafts)
    throw new UsageError(
      'serve: --speculative-method mtp: the layer that predicts further tokens reads text alone: serve the model with --no-read-images, or draft by ngram',
    );
  if (asked && !found)
    throw new UsageError(`serve: --read-images: the model in ${directory} reads text alone`);
  return { ...loaded, readsImages: asked ?? found };
}

/** A first token, before anybody is told of the server: how much room the cache has is known after it, and that the engine works. */
async function openCache(engine: RolloutEngine): Promise<void> {
  await engine.submit({ promptIds: [0], sampling: { maxNewTokens: 1 } }).result;
}

/** @throws UsageError when the cache has no room for what was asked for */
function checkRoom(room: number, asked: number | null, positions: number, say: (line: string) => void): void {
  const advice = '--gpu-memory-utilization gives it a larger share of memory';
  if (asked !== null && room < asked) {
    throw new UsageError(
      `serve: --max-model-len: expected at most ${room}, for which the cache of keys and values has room, got ${asked}: ${advice}`,
    );
  }
  if (asked === null && room < positions)
    say(
      `requests may have ${room} tokens of the model's ${positions}: the cache has no room for more (${advice})`,
    );
}
