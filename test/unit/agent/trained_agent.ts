// An agent of two turns with a tool, and runs that train agents over fakes.
import { z } from 'zod';
import { defineAgent } from '../../../ts/agent/define';
import { defineTool } from '../../../ts/agent/tools/tool';
import type { Trainer, TrainerOptions } from '../../../ts/trainer/trainer';
import { type FakeEngines, fakeData, read, type Setup, trainer } from '../../helpers/fake_run';

const tokenizer = {
  encode: (text: string) => Int32Array.from(text.split(' ').filter(Boolean), Number),
  decode: (tokens: ArrayLike<number>) => Array.from(tokens).join(' '),
};

export const add = defineTool({
  name: 'add',
  description: 'Adds',
  parameters: z.object({ a: z.number(), b: z.number() }),
  run: ({ a, b }) => {
    if (a === 9) throw new Error('nine');
    return a + b;
  },
});

/** Calls the model, a tool with what it said, and the model again; on odd tasks with a history that lacks the first answer. */
export const twoTurns = defineAgent({
  name: 'two turns',
  run: async ({ promptIds, groundTruth }, { model, tools, note, reward }) => {
    const first = await model.generate(promptIds, { maxNewTokens: 2 });
    reward(0.125);
    const { text } = await tools.call('add', { a: first.tokens[0], b: 1 });
    note({ role: 'tool', content: text });
    const observation = [8, 8];
    const rewritten = Number(groundTruth) % 4 === 2;
    const context = rewritten
      ? [...promptIds, ...observation]
      : [...promptIds, ...first.tokens, ...observation];
    const second = await model.generate(context, { maxNewTokens: 2 });
    return { reward: second.tokens.length, told: text, metrics: { 'env/rewritten': Number(rewritten) } };
  },
});

const CONFIG = [
  'data.max_response_length=8',
  'data.max_prompt_length=8',
  'trainer.total_epochs=1',
  'trainer.val_before_train=false',
];

/** A run of one epoch with these. */
export function run(setup: Setup & { options?: TrainerOptions }): {
  directory: string;
  engines: FakeEngines;
  trainer: Trainer;
} {
  return trainer({
    ...setup,
    overrides: [...CONFIG, ...(setup.overrides ?? [])],
    options: {
      data: async () => ({ ...fakeData(), tokenizer: tokenizer as never }),
      ...setup.options,
    },
  });
}

export const metricsOf = (directory: string, file = 'metrics.jsonl'): Record<string, number>[] =>
  read(directory, file)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
