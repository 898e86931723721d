import { mkdirSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { loadSftConfig } from '../../../ts/config/config';
import { leafPaths } from '../../../ts/config/reading/tree';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';
import { directory, KEYS, OPTIONS, ppo, read, why, write } from './verl_command';

describe('what the source leaves to verl', () => {
  it('is written where the default is not ours', () => {
    const { config, defaults } = ppo('algorithm.adv_estimator=grpo actor_rollout_ref.actor.clip_ratio=0.15');
    expect(config).toMatchObject({
      // verl's defaults for these two hold, whatever clip_ratio says.
      actor_rollout_ref: { actor: { clip_ratio: 0.15, clip_ratio_low: 0.2, clip_ratio_high: 0.2 } },
      trainer: {
        device: 'cuda',
        n_gpus_per_node: 8,
        logger: ['console', 'wandb'],
        project_name: 'verl_examples',
      },
    });
    expect(why(defaults, 'trainer.n_gpus_per_node')).toBe("verl's default 8 is written; ours is 1");
    expect(leafPaths(config)).not.toContain('trainer.default_local_dir');
  });

  it.each(['project_name', 'experiment_name'])('of a %s that is refused no directory is made', (name) => {
    const { config, notMapped } = ppo(`trainer.${name}=../../x`);
    expect(why(notMapped, `trainer.${name}`)).toMatch(/^expected a name .*, got "\.\.\/\.\.\/x"$/);
    expect(leafPaths(config)).not.toContain('trainer.default_local_dir');
  });

  it('of a critic is written where there is one', () => {
    const small = 'actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_epochs=2';
    const written = ({ config }: VerlImport): string[] =>
      leafPaths(config).filter((key) => key.startsWith('critic.'));
    expect(written(ppo(`algorithm.adv_estimator=grpo ${small}`))).toEqual([]);
    expect(written(ppo(`algorithm.adv_estimator=gae ${small}`))).toContain('critic.model.path');
    expect(written(ppo(`algorithm.adv_estimator=grpo critic.enable=True ${small}`))).toContain(
      'critic.model.path',
    );
  });

  it('differs between versions', () => {
    const dtype = ({ config }: VerlImport): string[] =>
      leafPaths(config).filter((key) => key === 'critic.model.fsdp_config.dtype');
    expect(dtype(ppo('', 'main'))).toHaveLength(1);
    expect(() => ppo('', 'v0.1')).toThrow(
      /verl: expected one of v0\.3\.0\.post1, .*main, or the directory .*, got "v0\.1"/,
    );
  });
});

it('tools in Python keep their files, and how many workers have them', () => {
  const turns = 'actor_rollout_ref.rollout.multi_turn';
  const { config, notMapped } = ppo(
    `${turns}.tool_config_path=~/tools.yaml ${turns}.function_tool_path=tools.py actor_rollout_ref.rollout.agent.num_workers=4`,
  );
  expect(notMapped).toEqual([]);
  expect(config).toMatchObject({
    actor_rollout_ref: {
      rollout: {
        multi_turn: { tool_config_path: join(homedir(), 'tools.yaml'), function_tool_path: 'tools.py' },
        agent: { num_workers: 4 },
      },
    },
  });
});

describe('keys', () => {
  it('one of which is accepted', () => {
    const { withoutEffect, notMapped } = ppo(
      'actor_rollout_ref.actor.fsdp_config.strategy=fsdp2 actor_rollout_ref.actor.optim.exp_avg_dtype=float32',
    );
    expect(why(withoutEffect, 'actor_rollout_ref.actor.fsdp_config.strategy')).toBe(
      'is what happens here anyway',
    );
    expect(why(withoutEffect, 'actor_rollout_ref.actor.optim.exp_avg_dtype')).toBeDefined();
    expect(notMapped).toEqual([]);
  });

  it('that are unknown come with the nearest, where there is one', () => {
    const { notMapped } = ppo('data.train_batch_sise=4 zzzzzzzz.qqqqqqqq=1');
    expect(why(notMapped, 'data.train_batch_sise')).toBe(
      'is not known here; the nearest is data.train_batch_size (its value: 4)',
    );
    expect(why(notMapped, 'zzzzzzzz')).toBe('is not known here (its value: {"qqqqqqqq":1})');
  });

  it('that ask for nothing while something is off are said to, and those that are unknown stay so', () => {
    const model = 'actor_rollout_ref.model';
    const { withoutEffect, notMapped } = ppo(
      `${model}.lora_alpha=8 ${model}.lora.alpha=8 +${model}.lora.rnk=16 ` +
        'reward.reward_kwargs.overlong_buffer_cfg.len=9 reward.reward_kwargs.overlong_buffer_cfg.enable=False',
    );
    expect(why(withoutEffect, `${model}.lora_alpha`)).toBe(`is of adapters, and ${model}.lora_rank is 0`);
    expect(why(withoutEffect, `${model}.lora.alpha`)).toBe(`is of adapters, and ${model}.lora.rank is 0`);
    expect(why(withoutEffect, 'reward.reward_kwargs.overlong_buffer_cfg.len')).toMatch(/enable is false$/);
    expect(notMapped).toEqual([{ key: `${model}.lora.rnk`, why: expect.stringMatching(/not known here/) }]);
  });

  it("DAPO's penalty for length arrives, under every name", () => {
    for (const prefix of [
      'reward_model.overlong_buffer',
      '+reward_model.reward_kwargs.overlong_buffer_cfg',
      'reward.reward_kwargs.overlong_buffer_cfg',
    ]) {
      const { config, notMapped } = ppo(
        `${prefix}.enable=True ${prefix}.len=4096 ${prefix}.penalty_factor=0.5 reward_model.reward_manager=dapo`,
      );
      expect(notMapped).toEqual([]);
      expect(config).toMatchObject({
        reward: {
          reward_manager: { name: 'dapo' },
          reward_kwargs: { overlong_buffer_cfg: { enable: true, len: 4096, penalty_factor: 0.5 } },
        },
      });
    }
  });

  it('of the recipe of DAPO have its defaults', () => {
    const { config, notMapped } = read(
      `python3 -m recipe.dapo.main_dapo ${KEYS} data.gen_batch_size=1536 algorithm.filter_groups.enable=True`,
    );
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      data: { gen_batch_size: 1536 },
      reward: { reward_manager: { name: 'dapo' } },
      trainer: { project_name: 'verl-dapo' },
    });
  });

  it('new names of the critic, and sequence parallelism of the reference', () => {
    const { config, notMapped } = ppo(
      'critic.fsdp.param_offload=True actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4 ' +
        'actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size=2',
    );
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      critic: { model: { fsdp_config: { param_offload: true } } },
      actor_rollout_ref: {
        actor: { fsdp_config: { ulysses_sequence_parallel_size: 4 } },
        ref: { ulysses_sequence_parallel_size: 2 },
      },
    });
  });

  it('a name with the time in it is one name from now on', () => {
    const source = readVerlSource(
      write(`python3 -m verl.trainer.main_ppo ${KEYS} trainer.experiment_name=run_$(date +%Y%m%d_%H%M)`),
      [],
      OPTIONS,
    );
    const { config, changed } = importVerl(source);
    expect(config['trainer']).toMatchObject({ experiment_name: expect.stringMatching(/^run_\d{8}_\d{4}$/) });
    expect(why(changed, 'trainer.experiment_name')).toMatch(/holds the time of this import/);
  });
});

describe('a script', () => {
  it('is read where it cannot be run, and says so', () => {
    const file = write(`if true; then N=2; fi\npython3 -m verl.trainer.main_ppo ${KEYS} trainer.nnodes=1`);
    const source = readVerlSource(file, [], { environment: { PATH: '/nowhere', HOME: '/home/u' } });
    expect(source.notRun).toMatch(/ENOENT/);
    expect(importVerl(source).config['trainer']).toMatchObject({ nnodes: 1 });
  });

  it('that stops is an error with its own words', () => {
    const file = write(`set -u\nMODEL=$BASE_MODEL\npython3 -m verl.trainer.main_ppo ${KEYS}`);
    expect(() => readVerlSource(file, [], OPTIONS)).toThrow(
      /exit code 1 before it started a trainer of verl: ".*BASE_MODEL: unbound variable"; set it in the environment, BASE_MODEL=\.\.\. troupe/,
    );
  });

  it('may bring configuration files of its own', () => {
    mkdirSync(join(directory, 'config'), { recursive: true });
    writeFileSync(
      join(directory, 'config/mine.yaml'),
      'hydra: { searchpath: [pkg://verl.trainer.config] }\ndefaults: [ppo_trainer, _self_]\ndata: { train_batch_size: 96 }\n',
    );
    const command = (name: string): VerlImport =>
      importVerl(
        readVerlSource(
          write(`python3 -m verl.trainer.main_ppo --config-path=./config --config-name=${name} ${KEYS}`),
          [],
          { ...OPTIONS, directory },
        ),
      );
    const { config, notMapped } = command('mine.yaml');
    expect(notMapped).toEqual([]);
    expect(config['data']).toMatchObject({ train_batch_size: 96 });
    expect(why(command('other').notMapped, 'the configuration file other.yaml')).toMatch(
      /its keys are not known/,
    );
  });
});

describe('the SFT trainer', () => {
  const script = (words: string): VerlImport =>
    importVerl(
      readVerlSource(
        write(`nproc=$1\ntorchrun --nnodes=1 --nproc_per_node=$nproc -m verl.trainer.sft_trainer ${words}`),
        ['8'],
        OPTIONS,
      ),
    );

  it('has its groups, its workers and its defaults', () => {
    const { config, notMapped, program } = script(
      'engine=fsdp optim=fsdp model=hf_model model.path=./m data.train_files=a.parquet optim.weight_decay=0.1 ' +
        'engine.ulysses_sequence_parallel_size=2 optim.lr_scheduler_type=cosine engine.fsdp_size=4',
    );
    expect(notMapped).toEqual([]);
    expect(program).toBe('sft');
    expect(config).toMatchObject({
      model: { path: './m', dtype: 'bfloat16', fsdp_config: { fsdp_size: 4 } },
      ulysses_sequence_parallel_size: 2,
      optim: {
        lr: 0.001,
        betas: [0.9, 0.999],
        weight_decay: 0.1,
        lr_warmup_steps_ratio: 0,
        lr_scheduler_type: 'cosine',
      },
      trainer: { device: 'cuda', n_gpus_per_node: 8, total_epochs: 4 },
      data: { messages_key: 'messages' },
    });
  });

  it('is refused with another engine', () => {
    expect(script('engine=veomni model.path=./m').notMapped).toEqual([
      { key: 'engine=veomni', why: expect.stringMatching(/^needs another engine than FSDP or Megatron/) },
    ]);
  });

  it('becomes a configuration that loads', () => {
    const { config } = script('model.path=./m data.train_files=a.parquet trainer.logger=console');
    const loaded = loadSftConfig(write(JSON.stringify(config), 'yaml'));
    expect(loaded.trainer).toMatchObject({ device: 'cuda', n_gpus_per_node: 8 });
  });
});

describe('keys that say here by another one', () => {
  const checkpoint = 'trainer.resume_from_path=/ckpt/global_step_5';

  it('a checkpoint that nothing resumes from is not read', () => {
    const { config, withoutEffect } = ppo(`trainer.resume_mode=auto ${checkpoint}`);
    expect(leafPaths(config)).not.toContain('trainer.resume_from_path');
    expect(why(withoutEffect, 'trainer.resume_from_path')).toBe(
      'is not read while trainer.resume_mode is auto',
    );
    expect(ppo(`trainer.resume_mode=resume_path ${checkpoint}`).config).toMatchObject({
      trainer: { resume_mode: 'resume_path', resume_from_path: '/ckpt/global_step_5' },
    });
  });

  it('main_dapo learns from all that it generates where nothing is filtered', () => {
    const dapo = (filter: boolean): VerlImport =>
      read(
        `python3 -m recipe.dapo.main_dapo ${KEYS} data.gen_batch_size=32 data.train_batch_size=16 algorithm.filter_groups.enable=${filter}`,
      );
    const { config, changed } = dapo(false);
    expect(config).toMatchObject({ data: { train_batch_size: 32 } });
    expect(leafPaths(config)).not.toContain('data.gen_batch_size');
    expect(why(changed, 'data.train_batch_size')).toMatch(/^32 prompts are generated.*=32, not 16$/);
    expect(dapo(true).config).toMatchObject({ data: { gen_batch_size: 32, train_batch_size: 16 } });
  });

  const OPTIMIZER = 'actor_rollout_ref.actor.optim.override_optimizer_config';

  it('an optimiser that Megatron keeps on the host lies there', () => {
    const host = [
      'optimizer_cpu_offload=True',
      'optimizer_offload_fraction=1.',
      'overlap_cpu_optimizer_d2h_h2d=True',
    ];
    const given = (options: readonly string[]): VerlImport =>
      ppo(`model_engine=megatron ${options.map((option) => `+${OPTIMIZER}.${option}`).join(' ')}`);
    const { config, changed, notMapped } = given(host);
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({ actor_rollout_ref: { actor: { megatron: { optimizer_offload: true } } } });
    expect(why(changed, `${OPTIMIZER}.optimizer_cpu_offload`)).toMatch(/megatron\.optimizer_offload=true/);
    expect(given(host.slice(1)).withoutEffect.map(({ key }) => key)).toEqual(
      expect.arrayContaining([`${OPTIMIZER}.optimizer_offload_fraction`]),
    );
    // An option of what is computed.
    expect(given([...host, 'store_param_remainders=True']).notMapped.map(({ key }) => key)).toEqual([
      OPTIMIZER,
    ]);
  });

  it('the longest context lies one section deeper under Megatron', () => {
    const section = 'actor_rollout_ref.model.override_config';
    const { config, changed, notMapped } = ppo(
      `model_engine=megatron +${section}.model_config.max_position_embeddings=10240`,
    );
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      actor_rollout_ref: { model: { override_config: { max_position_embeddings: 10240 } } },
    });
    expect(why(changed, `${section}.model_config.max_position_embeddings`)).toBe(
      `is now ${section}.max_position_embeddings`,
    );
    expect(ppo(`+${section}.model_config.hidden_size=8`).notMapped).toHaveLength(1);
  });

  it('a key within a section that is taken over from elsewhere makes it a section of its own', () => {
    const section = 'megatron.override_transformer_config';
    const layers = 'num_layers_in_first_pipeline_stage';
    const { config, notMapped } = ppo(
      `model_engine=megatron +actor_rollout_ref.actor.${section}.${layers}=3 ++actor_rollout_ref.ref.${section}.moe_enable_deepep=False`,
    );
    expect(notMapped).toEqual([]);
    expect(leafPaths(config)).toContain(`actor_rollout_ref.actor.${section}.${layers}`);
    expect(leafPaths(config)).not.toContain(`actor_rollout_ref.ref.${section}.${layers}`);
  });
});
