// The command line of `troupe generate`.
import type { Argv } from 'yargs';
import { RUN_LIMITS } from '../base/limits';
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
    .option('workers', {
      type: 'number',
      requiresArg: true,
      default: 1,
      describe: 'Processes that share the prompts; on cuda one for each GPU',
    })
    .option('tensor-parallel', {
      type: 'number',
      requiresArg: true,
      default: 1,
      describe: 'Workers that generate together, each with a part of the model',
    })
    .option('json', { type: 'boolean', default: false, describe: 'One JSON object per response' })
    .option('output', {
      type: 'string',
      requiresArg: true,
      describe: 'New .jsonl file for the rows of --prompts, with their responses',
    })
    .option('response-key', {
      type: 'string',
      default: 'responses',
      describe: 'Column of the responses in that file, a list of texts',
    })
    .check((a) => {
      if (a.prompt.length === 0 && a.prompts === undefined)
        throw new UsageError('generate: expected --prompt TEXT or --prompts FILE');
      if (a.output === undefined) return true;
      if (a.prompts === undefined || a.prompt.length > 0)
        throw new UsageError(
          'generate: --output: expected --prompts FILE, whose rows it has, and no --prompt',
        );
      if (a.json) throw new UsageError('generate: --output: expected no --json, which says what is printed');
      return true;
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
  const { workers, tensorParallel } = a;
  for (const [name, value] of Object.entries({ workers, 'tensor-parallel': tensorParallel })) {
    if (Number.isInteger(value) && value >= 1 && value <= RUN_LIMITS.ranks) continue;
    throw new UsageError(
      `generate: --${name}: expected an integer from 1 to ${RUN_LIMITS.ranks} but got ${value}`,
    );
  }
  if (workers % tensorParallel !== 0)
    throw new UsageError(
      `generate: --tensor-parallel: expected a divisor of --workers ${workers} but got ${tensorParallel}`,
    );
  return {
    model: a.model,
    prompt: a.prompt,
    prompts: a.prompts ?? null,
    promptKey: a.promptKey,
    chat: a.chat,
    json: a.json,
    output: a.output ?? null,
    responseKey: a.responseKey,
    workers,
    tensorParallel,
    device: a.device ?? null,
    dtype: a.dtype ?? null,
    sampling,
  };
}
