// Examples that data.max_length allows and that no micro-batch, or no model, can take: found before the run, and only where there are any.
import { join } from 'node:path';
import { loadSftConfig } from '../../ts/config/config';
import { loadSftData } from '../../ts/trainer/sft_data';
import { CONFORMANCE } from '../helpers/conformance';
import { writeConfig } from '../unit/config/write_config';
import { tokenizerDirectory, writeLines } from '../unit/data/fake_tokenizer';

const model = join(CONFORMANCE, 'models', 'llama_gqa', 'actor'); // of 128 positions
const tokenizer = tokenizerDirectory();
/** One token for each character, and two more. */
const row = (tokens: number): object => ({ prompt: 'a', response: 'b'.repeat(tokens - 3) });
/** So many bytes that they are read by threads. */
const many = (last: object): object[] => [
  ...Array.from({ length: 4000 }, () => ({ ...row(30), note: 'n'.repeat(2200) })),
  last,
];
const config = (rows: object[], ...overrides: string[]) =>
  loadSftConfig(writeConfig('{}'), [
    `model.path=${model}`,
    `model.tokenizer_path=${tokenizer}`,
    `data.train_files=${writeLines(rows)}`,
    'data.train_batch_size=1',
    'data.shuffle=false',
    'trainer.total_training_steps=1',
    'trainer.n_gpus_per_node=2',
    ...overrides,
  ]);
const load = async (rows: object[], ...overrides: string[]): Promise<void> => {
  await (await loadSftData(config(rows, ...overrides))).close?.();
};

const LONG = ['data.max_length=8192', 'data.max_token_len_per_gpu=64'];

test.each([
  ['few rows', (last: object) => [row(30), last]],
  ['rows that threads read', many],
])('longer than a micro-batch, in %s', async (_, rows) => {
  await load(rows(row(64)), ...LONG);
  // The run has one step, and does not reach it: only a row that is left out is not held against the room.
  await load(rows(row(65)), ...LONG, `data.train_max_samples=${rows(row(65)).length - 1}`);
  await expect(load(rows(row(65)), ...LONG)).rejects.toThrow(
    /data\.jsonl:\d+: the example has 65 tokens \(prompt 2\) .* the 64 tokens of a micro-batch \(data\.max_token_len_per_gpu 64\): raise data\.max_token_len_per_gpu to 8192, or set data\.max_length=64 with data\.truncation/,
  );
});

test('ranks that share a micro-batch hold more', async () => {
  const shared = [...LONG, 'ulysses_sequence_parallel_size=2'];
  await load([row(128)], ...shared);
  const context = [...LONG, 'engine.strategy=megatron', 'engine.context_parallel_size=2'];
  await load([row(128)], ...context);
  await expect(
    load([row(129)], ...shared, 'model.override_config.max_position_embeddings=256'),
  ).rejects.toThrow(
    /the 128 tokens of a micro-batch \(data\.max_token_len_per_gpu 64 x 2 ranks that share a micro-batch\): raise data\.max_token_len_per_gpu to 4096/,
  );
});

test('longer than the positions of the model, in training and validation', async () => {
  const long = ['data.max_length=8192', 'data.max_token_len_per_gpu=8192'];
  await load([row(128)], ...long);
  await expect(load([row(129)], ...long)).rejects.toThrow(
    /129 tokens .* the 128 positions of the model in .*llama_gqa.*: leave the row out, or set data\.max_length=128/,
  );
  await expect(load([row(9)], ...long, `data.val_files=${writeLines([row(129)])}`)).rejects.toThrow(
    /129 tokens/,
  );
  // What is cut fits, and what the configuration says of positions holds.
  await load([row(200)], 'data.max_length=128', 'data.truncation=right');
  await load([row(200)], ...long, 'model.override_config.max_position_embeddings=256');
});
