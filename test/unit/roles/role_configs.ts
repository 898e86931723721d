// Configurations of runs, and the group that options of their roles are for.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from '../../../ts/config/config';
import { FakeGroup } from '../actor/fake_group';

export const model = join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');
const value = join(__dirname, '../../fixtures/conformance/models/llama_gqa/critic');
export const yaml = (text: string): string => {
  const file = join(mkdtempSync(join(tmpdir(), 'roles-')), 'run.yaml');
  writeFileSync(file, text);
  return file;
};
export const ppo = (...overrides: string[]): ResolvedConfig =>
  loadConfig(
    yaml(`
data: { train_files: none.jsonl, train_batch_size: 8, max_prompt_length: 4, max_response_length: 4 }
actor_rollout_ref: { model: { path: ${model} }, actor: { ppo_mini_batch_size: 4 } }
critic: { model: { path: ${value} } }
reward: { reward_model: { model_path: ${value} } }
trainer: { n_gpus_per_node: 4, device: cpu }`),
    overrides,
  );
export const sft = (...overrides: string[]): ResolvedSftConfig =>
  loadSftConfig(
    yaml(`{ data: { train_files: none.jsonl }, model: { path: ${model} }, trainer: { device: cpu } }`),
    overrides,
  );

export const group = new FakeGroup({}, 4).asGroup();
