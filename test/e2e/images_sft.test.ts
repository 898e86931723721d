// Supervised fine-tuning of a model that reads images, to name the colour of a picture.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadSftConfig } from '../../ts/config/config';
import { SftTrainer } from '../../ts/trainer/sft_trainer';
import { writeJsonLines } from '../helpers/e2e_workspace';
import { expectCloseMetrics } from '../helpers/layout_runs';
import { readLines } from '../helpers/observed_run';
import { examples, rows } from '../helpers/pictures';
import { writeVisionModel } from '../helpers/vision_directory';
import { VISION_MODEL } from '../helpers/vision_model';

const directory = mkdtempSync(join(tmpdir(), 'troupe-images-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const file = (name: string): string => join(directory, name);

beforeAll(async () => {
  writeVisionModel(VISION_MODEL, file('model'));
  writeJsonLines(file('examples.jsonl'), examples(await rows(48, 2000)));
  writeJsonLines(file('heldout.jsonl'), examples(await rows(12, 3000)));
  const sft = {
    data: {
      train_files: file('examples.jsonl'),
      val_files: file('heldout.jsonl'),
      train_batch_size: 12,
      max_length: 90,
      apply_chat_template: true,
    },
    model: { path: file('model') },
    optim: { lr: 0.005, lr_warmup_steps_ratio: 0 },
    trainer: {
      device: 'cpu',
      n_gpus_per_node: 1,
      num_threads: 1,
      logger: [],
      save_freq: -1,
      test_freq: 20,
      total_training_steps: 20,
      default_local_dir: file('sft'),
    },
  };
  writeFileSync(file('sft.yaml'), JSON.stringify(sft));
});

test('SFT learns it from examples', async () => {
  const trainer = new SftTrainer(loadSftConfig(file('sft.yaml')));
  const { runDirectory } = await trainer.fit();
  const losses = readLines(join(runDirectory, 'metrics.jsonl')).flatMap((line) =>
    typeof line['val/loss'] === 'number' ? [line['val/loss']] : [],
  );
  expect(losses.at(-1)).toBeLessThan(0.5);
});

test('SFT over workers that share matrices and layers, or rows, is that of one', async () => {
  const configured = (name: string, ...overrides: string[]) =>
    loadSftConfig(file('sft.yaml'), [
      'trainer.total_training_steps=3',
      'trainer.test_freq=3',
      'optim.lr=1e-4',
      `trainer.default_local_dir=${file(name)}`,
      ...overrides,
    ]);
  const metrics = async (name: string, ...overrides: string[]) => {
    const { runDirectory } = await new SftTrainer(configured(name, ...overrides)).fit();
    return readLines(join(runDirectory, 'metrics.jsonl'));
  };
  const megatron = ['engine.strategy=megatron', 'trainer.n_gpus_per_node=4'];
  const sizes = ['tensor_model_parallel_size=2', 'pipeline_model_parallel_size=2'];
  const expected = await metrics('sft-one');
  expect(expected.at(-1)).toHaveProperty('val/loss');
  expectCloseMetrics(
    await metrics('sft-four', ...megatron, ...sizes.map((key) => `engine.${key}`)),
    expected,
  );
  expectCloseMetrics(await metrics('sft-rows', ...megatron, 'engine.context_parallel_size=2'), expected);
});
