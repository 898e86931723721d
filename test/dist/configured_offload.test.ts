import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import { loadConfig } from '../../ts/config/config';
import { createEngines } from '../../ts/trainer/engines';
import { gradientReductions } from '../../ts/trainer/gradient_reduction';
import { CONFORMANCE } from '../helpers/conformance';
import { writeConfig } from '../unit/config/write_config';

// What verl's keys mean for the engines of a run.
const MODEL = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
const FSDP = 'actor_rollout_ref.actor.fsdp_config';

const configured = (...overrides: string[]) =>
  loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${MODEL}`,
    'actor_rollout_ref.actor.use_kl_loss=true',
    'data.max_prompt_length=64',
    'data.max_response_length=64',
    'algorithm.adv_estimator=grpo',
    ...overrides,
  ]);

test('offload, prefetch, reduction and capacity of the configuration are those of the engines', async () => {
  const config = configured(
    `${FSDP}.optimizer_offload=true`,
    `${FSDP}.gradient_reduction=mini_batch`,
    'actor_rollout_ref.ref.fsdp_config.param_offload=true',
    'actor_rollout_ref.ref.fsdp_config.forward_prefetch=true',
    'trainer.n_gpus_per_node=2',
    'actor_rollout_ref.actor.ulysses_sequence_parallel_size=2',
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2000',
    'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=3000',
    'actor_rollout_ref.ref.ulysses_sequence_parallel_size=1',
  );
  const engines = await createEngines(config, {
    reference: true,
    critic: false,
    rewardModel: false,
    totalSteps: 1,
    device: 'cpu',
  });
  try {
    const { options, group } = (engines.actor as Actor).engine;
    const reference = (engines.reference as Actor).engine;
    expect(options).toMatchObject({
      offload: { parameters: false, gradients: false, moments: true },
      prefetch: false,
      reduction: 'mini_batch',
      // Two ranks share a micro-batch, and each has room for so many tokens.
      ulysses: 2,
      maxTokens: 4000,
    });
    expect(reference.options).toMatchObject({
      offload: { parameters: true },
      prefetch: true,
      ulysses: 1,
      maxTokens: 3000,
    });
    const bytes = (name: string) => group.callAll(name, 'stateBytes', () => []);
    for (const { moments, parameters, host } of await bytes('actor')) {
      expect([moments, host.parameters]).toEqual([0, 0]);
      expect(host.moments).toBe(2 * parameters);
    }
    for (const { parameters, host } of await bytes(reference.name)) {
      expect(parameters).toBe(0);
      expect(host.parameters).toBeGreaterThan(0);
    }
  } finally {
    await engines.close();
  }
}, 60_000);

test('gradient_reduction auto asks the plan of the run', async () => {
  const auto = (...overrides: string[]) =>
    gradientReductions(configured(`${FSDP}.gradient_reduction=auto`, ...overrides), 'cpu');
  expect(await auto()).toEqual({ actor: 'micro_batch', critic: 'micro_batch' });
  expect((await auto('trainer.memory_per_rank=1TiB')).actor).toBe('mini_batch');
  expect((await auto('trainer.memory_per_rank=1MiB')).actor).toBe('micro_batch');
}, 60_000);
