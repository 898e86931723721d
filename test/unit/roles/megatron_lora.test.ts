import { join } from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { describeConfig, loadConfig } from '../../../ts/config/config';
import { type LoraOptions, resolveLoraOptions } from '../../../ts/engine/lora_options';
import { planLora } from '../../../ts/engine/plan_lora';
import { trainedOptions } from '../../../ts/roles/role_options';
import { actorSettings, criticSettings, referenceSettings } from '../../../ts/roles/role_settings';
import { model, ppo, sft, yaml } from './role_configs';

test('LoRA by the names of Megatron is LoRA by ours', () => {
  const lora = 'actor_rollout_ref.model.lora';
  const config = ppo(`${lora}.rank=4`, `${lora}.target_modules=[linear_qkv,linear_fc1]`);
  const modules = ['q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj'];
  expect(trainedOptions(actorSettings(config), 9).lora).toMatchObject({
    rank: 4,
    alpha: 32,
    targetModules: modules,
  });
  expect(referenceSettings(config)).toBeNull();
  expect(config.actor_rollout_ref.model).toMatchObject({
    lora_rank: 4,
    lora_alpha: 32,
    target_modules: modules,
  });
  // What is written down is read again.
  expect(loadConfig(yaml(describeConfig(config)))).toEqual(config);
  expect(trainedOptions(actorSettings(ppo(`${lora}.rank=4`, `${lora}.adapter_path=a`)), 9).lora).toEqual({
    adapter: 'a',
    rank: 4,
  });
  const small = ppo('critic.model.lora.rank=2', 'critic.model.lora.alpha=8', `${lora}.alpha=9`);
  expect(trainedOptions(criticSettings(small), 9).lora).toMatchObject({ rank: 2, alpha: 8 });
  expect(trainedOptions(actorSettings(small), 9).lora).toBeUndefined();
  const canonical = sft(
    'model.lora.type=canonical_lora',
    'model.lora.rank=2',
    'model.lora.target_modules=[linear_q]',
  );
  expect(canonical.model).toMatchObject({ lora_rank: 2, target_modules: ['q_proj'] });
});

test.each(['gpt2', 'mixtral', 'qwen3_moe'])(
  'LoRA by the names of Megatron is on every linear layer of %s where no layer is left out',
  (name) => {
    const shape = loadModelDirectory(join(model, '../..', name, 'actor'), 'lm');
    const planned = (...keys: string[]): string[] => {
      const config = ppo(...keys.map((key) => `actor_rollout_ref.model.${key}`));
      const { lora } = trainedOptions(actorSettings(config), 9);
      return planLora('actor', shape, resolveLoraOptions('actor', lora as LoraOptions)).targetModules;
    };
    const all = planned('lora_rank=4');
    expect(planned('lora.rank=4')).toEqual(all);
    for (const list of [
      'linear_fc2,linear_fc1,linear_proj,linear_qkv',
      'linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate,linear_fc2',
    ])
      expect(planned('lora.rank=4', `lora.target_modules=[${list}]`)).toEqual(all);
    expect(() => planned('lora.rank=4', 'lora.target_modules=[linear_fc1]')).toThrow(
      /'gate_proj' matches no/,
    );
  },
);
