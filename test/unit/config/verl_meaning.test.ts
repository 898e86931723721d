import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { validate } from '../../../ts/cli/validate';
import { loadConfig, loadSftConfig } from '../../../ts/config/config';
import { leafPaths } from '../../../ts/config/reading/tree';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';

const directory = mkdtempSync(join(tmpdir(), 'troupe-meaning-'));
let count = 0;
const write = (text: string, end = 'sh'): string => {
  const file = join(directory, `${count++}.${end}`);
  writeFileSync(file, text);
  return file;
};
const OPTIONS = { environment: { PATH: process.env['PATH'], HOME: '/home/u' }, version: 'main' };
const KEYS = 'data.train_files=a.parquet data.val_files=null actor_rollout_ref.model.path=./m';
/** A command is read as text: no script is needed for what its keys mean. */
const read = (command: string, version = 'main'): VerlImport =>
  importVerl(readVerlSource(write(command), [], { ...OPTIONS, version, run: false }));
const ppo = (keys: string, version?: string): VerlImport =>
  read(`python3 -m verl.trainer.main_ppo ${KEYS} ${keys}`, version);
const why = (notes: VerlImport['notMapped'], key: string): string | undefined =>
  notes.find((note) => note.key === key)?.why;

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
    expect(() => ppo('', 'v0.1')).toThrow(/verl: expected one of v0\.6\.1, .*main, got "v0\.1"/);
  });
});

describe('keys', () => {
  it('one of which is accepted', () => {
    const { withoutEffect, notMapped } = ppo(
      'reward_model.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.model_dtype=float32',
    );
    expect(why(withoutEffect, 'reward_model.strategy')).toBe('is what happens here anyway');
    expect(why(withoutEffect, 'actor_rollout_ref.actor.fsdp_config.model_dtype')).toBeDefined();
    expect(notMapped).toEqual([]);
  });

  it('that are unknown come with the nearest, where there is one', () => {
    const { notMapped } = ppo('data.train_batch_sise=4 zzzzzzzz.qqqqqqqq=1');
    expect(why(notMapped, 'data.train_batch_sise')).toBe(
      'is not known here; the nearest is data.train_batch_size (its value: 4)',
    );
    expect(why(notMapped, 'zzzzzzzz')).toBe('is not known here (its value: {"qqqqqqqq":1})');
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
    const { config, notMapped } = read(`python3 -m recipe.dapo.main_dapo ${KEYS} data.gen_batch_size=1536`);
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

describe('what is missing is named', () => {
  it.each([
    ['trainer.device=npu', 'trainer.device', /got "npu": needs an engine for NPUs/],
    [
      '+actor_rollout_ref.model.override_config.rope_theta=1',
      'actor_rollout_ref.model.override_config.rope_theta',
      /edit config\.json/,
    ],
    ['data.image_key=images', 'data.image_key', /needs images/],
    ['model_engine=veomni', 'model_engine=veomni', /needs another engine than FSDP or Megatron/],
    [
      'actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml',
      'actor_rollout_ref.rollout.multi_turn.tool_config_path',
      /tools are JavaScript modules/,
    ],
    [
      'actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml',
      'actor_rollout_ref.rollout.agent.agent_loop_config_path',
      /agents are JavaScript modules/,
    ],
    ['+actor_rollout_ref.actor.state_masking=False', 'actor_rollout_ref.actor.state_masking', /observations/],
    ['trainer.v1.trainer_mode=separate_async', 'trainer.v1', /asynchronous training/],
    [
      'actor_rollout_ref.ref.router_replay.mode=R2',
      'actor_rollout_ref.ref.router_replay',
      /router replay of the reference/,
    ],
    [
      'actor_rollout_ref.rollout.response_length=9',
      'actor_rollout_ref.rollout.response_length',
      /max_response_length is 512/,
    ],
    [
      'actor_rollout_ref.ref.model.path=/m',
      'actor_rollout_ref.ref.model',
      /a reference with a model of its own/,
    ],
    [
      '+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32',
      'actor_rollout_ref.actor.fsdp_config.mixed_precision',
      /another mixed precision/,
    ],
    ['skip.rollout.enable=True', 'skip', /a rollout that is not generated/],
    ['global_profiler.tool=nsys', 'global_profiler', /a profiler/],
    ['distillation.enabled=True', 'distillation', /distillation/],
    [
      'actor_rollout_ref.rollout.quantization_config_file=q.json',
      'actor_rollout_ref.rollout.quantization_config_file',
      /quantised/,
    ],
    ['data.custom_cls.path=x.py', 'data.custom_cls.path', /a data set class in Python/],
  ])('%s', (keys, key, reason) => {
    const { notMapped } = ppo(keys);
    expect(why(notMapped, key)).toMatch(reason);
  });

  it('takes router replay', () => {
    const rollout = 'actor_rollout_ref.rollout.enable_rollout_routing_replay';
    const megatron = 'actor_rollout_ref.actor.megatron.router_replay.mode';
    expect(ppo(`model_engine=megatron ${megatron}=R3 ${rollout}=True`)).toMatchObject({
      notMapped: [],
      config: {
        actor_rollout_ref: {
          actor: { megatron: { router_replay: { mode: 'R3' } } },
          rollout: { enable_rollout_routing_replay: true },
        },
      },
    });
    expect(ppo(`actor_rollout_ref.actor.router_replay.mode=R2 ${rollout}=False`).notMapped).toEqual([]);
  });

  it.each(['model_engine=megatron', '--config-name=ppo_megatron_trainer'])('takes Megatron: %s', (choice) => {
    const keys = `actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=null +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=6 actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.ref.megatron.param_offload=True`;
    const { config, notMapped } = ppo(`${choice} ${keys} critic.megatron.tensor_model_parallel_size=2`);
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      actor_rollout_ref: {
        actor: {
          strategy: 'megatron',
          megatron: { tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2 },
        },
      },
      critic: { strategy: 'megatron', megatron: { tensor_model_parallel_size: 2 } },
    });
    const context = ppo(
      `${choice} actor_rollout_ref.actor.megatron.context_parallel_size=2 critic.megatron.context_parallel_size=4`,
    );
    expect(context.notMapped).toEqual([]);
    expect(context.config).toMatchObject({
      actor_rollout_ref: { actor: { megatron: { context_parallel_size: 2 } } },
      critic: { megatron: { context_parallel_size: 4 } },
    });
  });

  it("takes Megatron's choice of kernels, and nothing that computes something else", () => {
    const below = (keys: Record<string, unknown>): string =>
      Object.entries(keys)
        .map(
          ([key, value]) => `+actor_rollout_ref.actor.megatron.override_transformer_config.${key}=${value}`,
        )
        .join(' ');
    const kernels = {
      apply_rope_fusion: true,
      masked_softmax_fusion: true,
      use_flash_attn: true,
      fp8: false,
    };
    expect(ppo(`model_engine=megatron ${below({ ...kernels, attention_dropout: 0.0 })}`).notMapped).toEqual(
      [],
    );
    for (const other of [
      { attention_dropout: 0.1 },
      { fp8: 'hybrid' },
      { moe_expert_capacity_factor: 1.2 },
    ]) {
      const [key] = Object.keys(other);
      const { notMapped } = ppo(`model_engine=megatron ${below(other)}`);
      expect(notMapped.map((note) => note.key)).toEqual([
        `actor_rollout_ref.actor.megatron.override_transformer_config.${key}`,
      ]);
    }
  });

  it("takes all that Search-R1's scripts say", () => {
    const script =
      'data.max_start_length=2048 data.max_obs_length=500 actor_rollout_ref.rollout.n_agent=5 actor_rollout_ref.actor.state_masking=true ' +
      'algorithm.no_think_rl=false max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve retriever.topk=3 do_search=true ' +
      'reward_model.structure_format_score=0.2 reward_model.final_format_score=0.1 reward_model.retrieval_score=0';
    const { notMapped, config } = ppo(script.replaceAll(' ', ' +').replace(/^/, '+'));
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      data: { max_start_length: 2048, max_obs_length: 500 },
      actor_rollout_ref: { rollout: { n: 5 } },
      max_turns: 4,
      do_search: true,
      retriever: { url: 'http://127.0.0.1:8000/retrieve', topk: 3 },
      reward: { qa_em: { structure_format_score: 0.2, final_format_score: 0.1, retrieval_score: 0 } },
    });
  });

  it.each([
    'actor_rollout_ref.rollout.agent.num_workers=4',
    'actor_rollout_ref.actor.profiler.ranks=[0]',
    'trainer.use_v1=True',
    'data.max_response_length=9 actor_rollout_ref.rollout.response_length=9',
    '+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16',
    'actor_rollout_ref.actor.router_replay.mode=disabled',
    '+actor_rollout_ref.model.override_config.attention_dropout=0. +actor_rollout_ref.model.override_config.attn_implementation=sdpa',
    '+actor_rollout_ref.model.override_config.max_position_embeddings=32768',
    'actor_rollout_ref.model.lora_rank=0 actor_rollout_ref.model.lora_alpha=0',
    '+actor_rollout_ref.actor.policy_loss.tau_pos=1.0',
  ])('%s asks for nothing', (keys) => {
    expect(ppo(keys).notMapped).toEqual([]);
  });

  it.each([
    ['recipe.sppo.main_sppo', /needs the program recipe\.sppo\.main_sppo, a trainer of its own/],
    ['verl.experimental.fully_async_policy.fully_async_main', /needs asynchronous training \(the program/],
    ['verl.trainer.main_generation_server', /generates or evaluates and does not train/],
  ])('the program %s', (program, reason) => {
    expect(why(read(`python3 -m ${program} ${KEYS}`).notMapped, 'the program')).toMatch(reason);
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
    expect(script('engine=megatron model.path=./m').notMapped).toEqual([
      { key: 'engine=megatron', why: expect.stringMatching(/^needs another engine than FSDP/) },
    ]);
  });

  it('becomes a configuration that loads', () => {
    const { config } = script('model.path=./m data.train_files=a.parquet trainer.logger=console');
    const loaded = loadSftConfig(write(JSON.stringify(config), 'yaml'));
    expect(loaded.trainer).toMatchObject({ device: 'cuda', n_gpus_per_node: 8 });
  });
});

describe('troupe import-verl', () => {
  const command = (keys: string, allowMissing: boolean): { code: number; said: string; out: string } => {
    const out = join(directory, `out${count++}.yaml`);
    let said = '';
    const script = write(`python3 -m verl.trainer.main_ppo ${KEYS} algorithm.adv_estimator=grpo ${keys}`);
    const say = (text: string): void => {
      said += text;
    };
    const code = importVerlCommand(script, [], { out, allowMissing, version: 'main', write: say });
    return { code, said, out };
  };

  it('writes what means the same', () => {
    const { code, said, out } = command('trainer.n_gpus_per_node=2', false);
    expect(code).toBe(0);
    expect(said).toMatch(
      /was run in a sandbox, where it would have started: verl\.trainer\.main_ppo \(5 arguments\)/,
    );
    expect(loadConfig(out).trainer).toMatchObject({ device: 'cuda', n_gpus_per_node: 2 });
  });

  it('takes over a run on several machines', () => {
    const { code, out } = command('trainer.nnodes=2', false);
    expect(code).toBe(0);
    expect(loadConfig(out).trainer).toMatchObject({ nnodes: 2, launcher: { type: null } });
  });

  it.each(['no.such=1', 'trainer.logger=swanlab', 'actor_rollout_ref.model.path=Qwen/Qwen3.5-4B'])(
    '%s: exit code 2 and nothing written, unless --allow-missing',
    (keys) => {
      const refused = command(keys, false);
      expect(refused.code).toBe(2);
      expect(refused.said).toMatch(/Nothing was written: 1 thing that changes the run/);
      expect(existsSync(refused.out)).toBe(false);
      const allowed = command(keys, true);
      expect(allowed.code).toBe(0);
      expect(readFileSync(allowed.out, 'utf8')).toContain('algorithm:');
    },
  );
});

describe('troupe validate', () => {
  const check = async (keys: string): Promise<unknown> =>
    validate(
      write(`data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ${keys} } }\n`, 'yaml'),
      [],
    );
  const model = (type: string): string => {
    const dir = join(directory, `model${count++}`);
    mkdirSync(dir);
    writeFileSync(join(dir, 'config.json'), JSON.stringify({ model_type: type }));
    return dir;
  };

  it.each([
    ['Qwen/Qwen2.5-VL-7B-Instruct', /needs images \(a vision-language model\)/],
    [
      '/data/Qwen3-Next-80B-A3B-Instruct',
      /needs the model family Qwen3-Next, which is not there \(judged by the name/,
    ],
    ['google/gemma-2b-it', /needs the model family Gemma other than Gemma 2/],
  ])('a model that is not there: %s', async (name, message) => {
    await expect(check(name)).rejects.toThrow(message);
  });

  it('asks config.json first', async () => {
    await expect(check(model('qwen3_5'))).rejects.toThrow(
      /needs the model family qwen3_5, which is not there/,
    );
  });

  it.each([
    'custom_reward_function: { path: ./r.py }',
    'reward: { reward_manager: { source: importlib, module: { path: r.py } } }',
  ])('a reward in Python: %s', async (reward) => {
    const file = write(
      `data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ./m } }\n${reward}\n`,
      'yaml',
    );
    await expect(validate(file, [])).rejects.toThrow(/path: needs rewards in Python, which are not there: /);
  });

  it('reports what is missing and what is wrong at once', async () => {
    const file = write(
      'data: { train_files: a.parquet, train_batch_size: 100 }\nactor_rollout_ref: { model: { path: openai/gpt-oss-20b } }\n' +
        'trainer: { nnodes: 2, launcher: { type: local }, logger: [swanlab] }\n',
      'yaml',
    );
    const error: unknown = await validate(file, []).catch((caught: unknown) => caught);
    const lines = (error as Error).message.split('\n').map((line) => line.slice(0, line.indexOf(':')));
    expect(lines).toEqual([
      'trainer.logger',
      'trainer.nnodes',
      'actor_rollout_ref.actor.ppo_mini_batch_size',
      'critic.ppo_mini_batch_size',
      'actor_rollout_ref.model.path',
    ]);
  });
});
