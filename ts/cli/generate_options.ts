// The command line of `troupe generate`.
import type { Argv } from 'yargs';
import { resolveSampling } from '../rollout/sampling';
import type { GenerateOptions } from './generate';
import { UsageError } from './report';

export const withSampling = (y: Argv) =>
  y
    .option('model', {
      type: 'string',
      demandOption: true,
      requiresArg: true,
      describe: 'Hugging Face directory',
    })
    .option('prompt', {
      type: 'string',
      array: true,
      nargs: 1,
      default: [] as string[],
      defaultDescription: 'none',
      describe: 'A prompt; may be repeated',
    })
    .option('prompts', {
      type: 'string',
      requiresArg: true,
      describe: '.jsonl, .json or .parquet file with prompts',
    })
    .option('prompt-key', {
      type: 'string',
      default: 'prompt',
      describe: 'Column of the prompts in that file',
    })
    .option('chat', {
      type: 'boolean',
      default: false,
      describe: 'Use the chat template for prompts of plain text',
    })
    .option('max-new-tokens', { type: 'number', requiresArg: true, default: 256 })
    .option('n', { type: 'number', requiresArg: true, default: 1, describe: 'Responses per prompt' })
    .option('temperature', { type: 'number', requiresArg: true, default: 1, describe: '0: greedy' })
    .option('top-k', { type: 'number', requiresArg: true, default: -1, describe: '-1: off' })
    .option('top-p', { type: 'number', requiresArg: true, default: 1, describe: '1: off' })
    .option('seed', { type: 'number', requiresArg: true, default: 0 })
    .option('device', { choices: ['cpu', 'cuda'] as const })
    .option('dtype', { choices: ['float32', 'bfloat16'] as const })
    .option('json', { type: 'boolean', default: false, describe: 'One JSON object per response' })
    .check((a) => {
      if (a.prompt.length > 0 || a.prompts !== undefined) return true;
      throw new UsageError('generate: expected --prompt TEXT or --prompts FILE');
    });

/** @throws UsageError naming the option that is out of range */
export function generateOptions(a: Awaited<ReturnType<typeof withSampling>['argv']>): GenerateOptions {
  const { maxNewTokens, n, temperature, topK, topP, seed } = a;
  const sampling = { maxNewTokens, n, temperature, topK, topP, seed };
  try {
    resolveSampling('generate', sampling);
  } catch (error) {
    // It names the option of the API: maxNewTokens is --max-new-tokens here.
    const message = (error as Error).message.replace(
      /^\[generate\] (\w+)/,
      (_, name: string) => `generate: --${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`,
    );
    throw new UsageError(message);
  }
  return {
    model: a.model,
    prompt: a.prompt,
    prompts: a.prompts ?? null,
    promptKey: a.promptKey,
    chat: a.chat,
    json: a.json,
    device: a.device ?? null,
    dtype: a.dtype ?? null,
    sampling,
  };
}
