import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp from 'sharp';
import { Actor } from '../../ts/actor/actor';
import { readTensors } from '../../ts/checkpoint/safetensors';
import { loadConfig, loadSftConfig } from '../../ts/config/config';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { SftTrainer } from '../../ts/trainer/sft_trainer';
import { Trainer } from '../../ts/trainer/trainer';
import { writeJsonLines } from '../helpers/e2e_workspace';
import { type ObservedRun, observeRun, readLines } from '../helpers/observed_run';
import { VISION_MODEL, visionBatch } from '../helpers/vision_model';
import { ALPHABET, tokenizerDirectory } from '../unit/data/fake_tokenizer';

// A model that reads images learns to name the colour of a picture.

const directory = mkdtempSync(join(tmpdir(), 'troupe-images-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const file = (name: string): string => join(directory, name);

const COLOURS: Readonly<Record<string, [number, number, number]>> = {
  r: [220, 40, 40],
  g: [40, 200, 40],
  b: [40, 40, 220],
};
const TEMPLATE =
  '{%- for m in messages -%}{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}' +
  "{%- if p.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}" +
  '{%- if add_generation_prompt -%}={%- endif -%}';

/** The model of the fixtures, with a tokenizer that has its image token. */
function writeModel(): void {
  mkdirSync(file('model'));
  for (const name of readdirSync(VISION_MODEL)) copyFileSync(join(VISION_MODEL, name), join(file('model'), name));
  const source = tokenizerDirectory({ chat_template: TEMPLATE });
  copyFileSync(join(source, 'tokenizer_config.json'), join(file('model'), 'tokenizer_config.json'));
  // biome-ignore lint/suspicious/noExplicitAny: a file of our own
  const definition = require(join(source, 'tokenizer.json')) as any;
  for (const [i, content] of ['<|image_pad|>', '<|vision_start|>', '<|vision_end|>'].entries())
    definition.added_tokens.push({ ...definition.added_tokens[0], id: 60 + i, content });
  definition.post_processor = null;
  writeFileSync(join(file('model'), 'tokenizer.json'), JSON.stringify(definition));
}

/** A picture of one colour, darker and lighter by place, of a size of its own. */
async function picture(colour: string, i: number): Promise<string> {
  const [height, width] = [24 + ((i * 7) % 19), 24 + ((i * 5) % 23)];
  const pixels = Buffer.alloc(height * width * 3);
  for (let p = 0; p < height * width; p++)
    for (let c = 0; c < 3; c++)
      pixels[3 * p + c] = (COLOURS[colour]?.[c] as number) + ((p * 13 + i * 29 + c * 7) % 35);
  const png = await sharp(pixels, { raw: { height, width, channels: 3 } }).png().toBuffer();
  return `data:image/png;base64,${png.toString('base64')}`;
}

async function rows(count: number, first: number): Promise<Record<string, unknown>[]> {
  return Promise.all(
    Array.from({ length: count }, async (_, k) => {
      const colour = 'rgb'[k % 3] as string;
      return {
        data_source: 'colours',
        prompt: [{ role: 'user', content: 'see <image>?' }],
        images: [await picture(colour, first + k)],
        reward_model: { style: 'rule', ground_truth: colour },
        extra_info: { index: k },
      };
    }),
  );
}

const reward: RewardFunction = ({ response, groundTruth }) => ({
  score: response === groundTruth ? 1 : response in COLOURS ? 0.1 : 0,
});

beforeAll(async () => {
  writeModel();
  writeJsonLines(file('train.jsonl'), await rows(48, 0));
  writeJsonLines(file('val.jsonl'), await rows(30, 1000));
  const examples = await rows(48, 2000);
  writeJsonLines(
    file('examples.jsonl'),
    examples.map(({ prompt, images, reward_model: truth }) => ({
      prompt,
      images,
      response: (truth as { ground_truth: string }).ground_truth,
    })),
  );
  const grpo = {
    data: {
      train_files: file('train.jsonl'),
      val_files: file('val.jsonl'),
      train_batch_size: 12,
      max_prompt_length: 80,
      max_response_length: 1,
    },
    algorithm: { adv_estimator: 'grpo' },
    actor_rollout_ref: {
      model: { path: file('model') },
      actor: { ppo_mini_batch_size: 12, ppo_max_token_len_per_gpu: 512, use_kl_loss: false, optim: { lr: 0.003 } },
      rollout: { n: 8 },
    },
    trainer: {
      device: 'cpu',
      n_gpus_per_node: 1,
      logger: [],
      save_freq: -1,
      test_freq: 60,
      val_before_train: true,
      total_training_steps: 60,
    },
  };
  writeFileSync(file('grpo.yaml'), JSON.stringify(grpo));
});

const run = (name: string, ...overrides: string[]): Promise<ObservedRun> =>
  observeRun(file('grpo.yaml'), [...overrides, `trainer.default_local_dir=${file(name)}`], reward);

const accuracies = ({ metrics }: ObservedRun): number[] =>
  metrics.flatMap((line) => {
    const key = Object.keys(line).find((name) => name.startsWith('val-core/'));
    return key === undefined ? [] : [line[key] as number];
  });

test('GRPO', async () => {
  const observed = await run('grpo');
  console.log(accuracies(observed), Object.keys(observed.metrics.at(-1) ?? {}).filter((k) => k.startsWith('val')));
  console.log(ALPHABET.length, readLines.name, readTensors.name, Actor.name, visionBatch.name, Trainer.name, SftTrainer.name, loadConfig.name, loadSftConfig.name);
});
