// Keys of verl that a configuration may have and that are read otherwise, or for nothing.
import { configNotes } from '../../../ts/config/config';
import { failure, load, MINIMAL, reference } from './write_config';

describe('keys of verl', () => {
  it('without effect are noted with the reason', () => {
    const config = load([
      'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4',
      'actor_rollout_ref.rollout.enforce_eager=true',
      'actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params=0',
      '+ray_kwargs.ray_init.num_cpus=4',
    ]);
    expect(configNotes(config).map(({ path }) => path)).toEqual([
      'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu',
      'actor_rollout_ref.actor.fsdp_config.wrap_policy',
      'actor_rollout_ref.rollout.enforce_eager',
      'ray_kwargs',
    ]);
    for (const { reason } of configNotes(config)) expect(reason).not.toBe('');
  });

  it('that ask for what happens anyway are not worth a note', () => {
    expect(
      configNotes(load(['actor_rollout_ref.actor.strategy=fsdp', 'algorithm.use_pf_ppo=false'])),
    ).toEqual([]);
  });

  it('of LoRA for Megatron are without effect where there is no adapter', () => {
    const lora = 'actor_rollout_ref.model.lora';
    const keys = [
      'dropout=0.1',
      'type=dora',
      'exclude_modules=[linear_fc1]',
      'alpha=0',
      'target_modules=["*.linear_qkv"]',
    ].map((key) => `${lora}.${key}`);
    const paths = keys.map((key) => key.replace(/=.*/, ''));
    for (const given of [keys, [`${lora}.rank=0`, ...keys], [`${lora}.rank=null`, ...keys]]) {
      const config = load(given);
      expect(config).toEqual(load());
      expect(configNotes(config)).toEqual(
        paths.map((path) => ({ path, reason: `there are no adapters: ${lora}.rank is 0` })),
      );
    }
    const unlisted = load([`${lora}.rank=0`, `${lora}.new_key=1`, `${lora}.merge=true`]);
    expect(configNotes(unlisted).map(({ path }) => path)).toEqual([`${lora}.new_key`, `${lora}.merge`]);
    // It may be a slip in the name of the rank.
    expect(failure([`${lora}.rnk=16`]).message).toMatch(/unknown key .*\.lora\.rnk: did you mean .*\.rank\?/);
    expect(failure([`${lora}.rank=-1`, ...keys]).message).toMatch(/lora\.rank: expected an integer/);
  });

  it('that offload state work on every device, and save nothing on cpu', () => {
    const keys = [
      'actor_rollout_ref.actor.fsdp_config.optimizer_offload',
      'actor_rollout_ref.ref.fsdp_config.param_offload',
      'critic.model.fsdp_config.offload_policy',
    ];
    const asked = keys.map((key) => `${key}=true`);
    const config = load(asked);
    const nothing = 'on cpu the host is the same memory: nothing is saved';
    expect(config.actor_rollout_ref.ref.fsdp_config.param_offload).toBe(true);
    expect(config.actor_rollout_ref.actor.fsdp_config.param_offload).toBe(false);
    expect(configNotes(config)).toEqual(keys.map((path) => ({ path, reason: `works on a GPU; ${nothing}` })));
    const onCpu = configNotes(load([...asked, 'trainer.device=cpu']));
    expect(onCpu).toEqual(keys.map((path) => ({ path, reason: nothing })));
    expect(configNotes(load([...asked, 'trainer.device=cuda']))).toEqual([]);
    expect(load(['trainer.memory_per_rank=80GiB']).trainer.memory_per_rank).toBe(80 * 2 ** 30);
    expect(failure(['trainer.memory_per_rank=much']).message).toMatch(
      /trainer.memory_per_rank: expected a size such as 80GiB, or a number of bytes, or null, got "much"/,
    );
  });

  it('with older names go where they belong', () => {
    const config = load([
      'custom_reward_function.path=reward.js',
      'actor_rollout_ref.actor.optim.warmup_style=cosine',
    ]);
    expect(config.reward.custom_reward_function.path).toBe('reward.js');
    expect(config.actor_rollout_ref.actor.optim.lr_scheduler_type).toBe('cosine');
    expect(configNotes(config).map(({ reason }) => reason)).toContain(
      'is an older name of reward.custom_reward_function.path',
    );
    const both = ['custom_reward_function.path=a.js', 'reward.custom_reward_function.path=b.js'];
    expect(failure(both).message).toMatch(/older name of .*, and both are given: "a\.js" and "b\.js"/);
  });

  it('of the reward section of older versions keep their meaning', () => {
    const { reward } = load([
      'reward_model.reward_manager=dapo',
      'reward_model.num_workers=2',
      '+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True',
      '+reward_model.reward_kwargs.overlong_buffer_cfg.len=64',
      'reward_model.max_rpm=30',
      '+custom_reward_function.reward_kwargs.bonus=0.5',
    ]);
    expect(reward.reward_manager.name).toBe('dapo');
    expect(reward).toMatchObject({ num_workers: 2, max_rpm: 30, max_tpm: null, timeout: 300 });
    expect(reward.reward_kwargs.overlong_buffer_cfg).toEqual({
      enable: true,
      len: 64,
      penalty_factor: 1,
      log: false,
    });
    expect(reward.reward_kwargs.max_resp_len).toBe(load([]).data.max_response_length);
    expect(reward.custom_reward_function.reward_kwargs).toEqual({ bonus: 0.5 });
    expect(load(['reward_model.overlong_buffer.len=8']).reward.reward_kwargs.overlong_buffer_cfg.len).toBe(8);
    expect(failure(['reward_model.reward_manager=prim']).message).toMatch(
      /reward\.reward_manager\.name: .*prime.* got "prim"; did you mean prime\?/,
    );
    expect(failure(['reward.reward_manager.source=importlib']).message).toMatch(
      /reward_manager\.module\.path: expected a file/,
    );
  });

  it('accepts _target_ and references to other keys', () => {
    const text = `${MINIMAL}trainer:
  _target_: verl.Something
  project_name: p
  experiment_name: \${trainer.project_name}-\${data.train_batch_size}
algorithm: { gamma: "\${data.train_batch_size}" }
`;
    const config = load(['algorithm.gamma=1'], text);
    expect(config.trainer.experiment_name).toBe('p-64');
    expect(config.trainer.default_local_dir).toBe('checkpoints/p/p-64');
    expect(failure([`trainer.project_name=${reference('no.such')}`]).message).toMatch(
      /cannot resolve \$\{no\.such\}/,
    );
    expect(failure([`trainer.project_name=${reference('trainer.project_name')}`]).message).toMatch(
      /refers to itself/,
    );
    expect(failure([`trainer.project_name=${reference('oc.decode:HOME')}`]).message).toMatch(
      /trainer\.project_name: .*resolvers other than oc\.select and oc\.env are not available/,
    );
  });
});
