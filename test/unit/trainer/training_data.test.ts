import { join } from 'node:path';
import { loadConfig } from '../../../ts/config/config';
import { loadTrainingData } from '../../../ts/trainer/training_data';
import { CONFORMANCE } from '../../helpers/conformance';
import { VISION_MODEL } from '../../helpers/vision_model';
import { writeConfig } from '../config/write_config';
import { rlRow, tokenizerDirectory, writeLines } from '../data/fake_tokenizer';

const tokenizer = tokenizerDirectory();
/** One token for each character, and one before them. */
const prompt = (tokens: number): object => rlRow('a'.repeat(tokens - 1));

/** Tokens of the prompts of a first batch of two. */
async function read(rows: object[], ...overrides: string[]): Promise<number[]> {
  const config = loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${join(CONFORMANCE, 'models', 'llama_gqa', 'actor')}`,
    `actor_rollout_ref.model.tokenizer_path=${tokenizer}`,
    'actor_rollout_ref.actor.ppo_mini_batch_size=2',
    'algorithm.adv_estimator=grpo',
    `data.train_files=${writeLines(rows)}`,
    'data.train_batch_size=2',
    'data.shuffle=false',
    'data.max_prompt_length=32',
    'data.max_response_length=32',
    ...overrides,
  ]);
  const { train, close } = await loadTrainingData(config);
  const { prompts } = await train.next();
  await close?.();
  return prompts.map(({ tokens }) => tokens.length);
}

test('a prompt leaves room for a response within rollout.max_model_len', async () => {
  const rows = [prompt(32), prompt(19), prompt(20), prompt(5)];
  const most = 'actor_rollout_ref.rollout.max_model_len=20';
  expect(await read(rows)).toEqual([32, 19]);
  expect(await read(rows, 'actor_rollout_ref.rollout.max_model_len=33')).toEqual([32, 19]);
  expect(await read(rows, most, 'data.truncation=left')).toEqual([19, 19]);
  expect(await read(rows, most, 'data.filter_overlong_prompts=true')).toEqual([19, 5]);
  await expect(read(rows, most)).rejects.toThrow(
    /the prompt has 32 tokens, more than actor_rollout_ref\.rollout\.max_model_len 20 leaves beside a response \(19\): raise it/,
  );
});

test('sequences that the model has no positions for are refused before the data are read', async () => {
  await expect(read([], 'data.max_response_length=97')).rejects.toThrow(
    /^data\.max_response_length: .* = 129 tokens are more than the 128 positions of the model/,
  );
});

test('a critic of a policy that reads images is refused as one that is not there', async () => {
  const keys = [`actor_rollout_ref.model.path=${VISION_MODEL}`, 'algorithm.adv_estimator=gae'];
  await expect(read([], ...keys)).rejects.toThrow(/a critic of its family is not there/);
});
