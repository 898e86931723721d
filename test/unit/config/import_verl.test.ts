import fs, { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { loadConfig } from '../../../ts/config/config';
import { getPath, leafPaths } from '../../../ts/config/reading/tree';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';

const directory = mkdtempSync(join(tmpdir(), 'troupe-import-'));
const write = (name: string, text: string): string => {
  const file = join(directory, name);
  writeFileSync(file, text);
  return file;
};
const translate = (name: string, text: string, overrides: string[] = []): VerlImport =>
  importVerl(readVerlSource(write(name, text), overrides, { environment: { HOME: '/home/u' }, run: false }));
const why = (notes: VerlImport['notMapped'], key: string): string | undefined =>
  notes.find((note) => note.key === key)?.why;

/** As shells and OmegaConf write it. */
const ref = (name: string): string => `\${${name}}`;

const GRPO = String.raw`#!/usr/bin/env bash
set -xeuo pipefail
export VLLM_ATTENTION_BACKEND=XFORMERS   # not ours
gsm8k_train=$HOME/data/gsm8k/train.parquet
math_train=${ref('DATA_ROOT:-"/data"')}/math/train.parquet
train_files="['$gsm8k_train', '$math_train']"
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * (2 + 6)))
max_len=$(((max_prompt_length + max_response_length) * 1))
offload=True

python3 -m verl.trainer.main_ppo --config-name='ppo_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files="$train_files" \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=1024 data.max_prompt_length=${ref('max_prompt_length')} \
    data.max_response_length=$max_response_length \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${ref('max_len')} \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.fsdp_config.param_offload=$offload \
    actor_rollout_ref.actor.shuffle=False \
    actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.n=5 \
    +actor_rollout_ref.rollout.val_kwargs.n=4 \
    actor_rollout_ref.rollout.mystery_switch=3 \
    ~data.seed \
    custom_reward_function.path=./reward.py \
    trainer.logger='["console","file"]' \
    trainer.experiment_name="run_$(date +%s)" \
    trainer.project_name='it '"is" trainer.n_gpus_per_node=1 \
    trainer.total_epochs=15 $@ 2>&1 | tee log.txt
echo done=yes
`;

describe('a launch script', () => {
  const result = translate('grpo.sh', GRPO);

  it('gives the keys that map, as a configuration', () => {
    expect(result.config).toEqual({
      algorithm: { adv_estimator: 'grpo' },
      data: {
        train_files: ['/home/u/data/gsm8k/train.parquet', '/data/math/train.parquet'],
        val_files: '/home/u/data/gsm8k/test.parquet',
        train_batch_size: 1024,
        max_prompt_length: 2048,
        max_response_length: 8192,
        filter_overlong_prompts: true,
        truncation: 'error',
      },
      actor_rollout_ref: {
        model: { path: 'Qwen/Qwen2-7B-Instruct' },
        actor: {
          optim: { lr: 1e-6 },
          ppo_mini_batch_size: 256,
          ppo_max_token_len_per_gpu: 10240,
          use_kl_loss: true,
          fsdp_config: { param_offload: true, model_dtype: 'bfloat16', dtype: 'bfloat16' },
          kl_loss_type: 'low_var_kl',
        },
        rollout: {
          name: 'vllm',
          tensor_model_parallel_size: 1,
          max_num_seqs: 256,
          n: 5,
          val_kwargs: { n: 4 },
        },
      },
      reward: { custom_reward_function: { path: './reward.py' } },
      trainer: {
        logger: ['console', 'file'],
        project_name: 'it is',
        n_gpus_per_node: 1,
        total_epochs: 15,
        device: 'cuda',
      },
    });
  });

  it('may keep its arguments in arrays', () => {
    const script = `
size=$((2 * 32))
DATA=(
    # what is read
    data.train_files="/d/a b.parquet" data.train_batch_size=\${size}
    data.truncation='left' \\
    data.max_prompt_length=512  # tokens
)
ACTOR=(actor_rollout_ref.actor.optim.lr=2e-6)
ACTOR+=("actor_rollout_ref.actor.ppo_epochs=2")
ALL=("\${DATA[@]}" \${ACTOR[*]})
EMPTY=()
python3 -m verl.trainer.main_ppo "\${EMPTY[@]}" "\${ALL[@]}" "\${OTHER[@]}" trainer.total_epochs=3
`;
    const { config, notMapped } = translate('arrays.sh', script);
    expect(config).toMatchObject({
      data: {
        train_files: '/d/a b.parquet',
        train_batch_size: 64,
        truncation: 'left',
        max_prompt_length: 512,
      },
      actor_rollout_ref: { actor: { optim: { lr: 2e-6 }, ppo_epochs: 2 } },
      trainer: { total_epochs: 3, device: 'cuda' },
    });
    expect(notMapped).toEqual([{ key: 'an argument', why: 'holds the array OTHER, which is not set' }]);
  });

  it('says of every other key why it is not there', () => {
    const { notMapped, withoutEffect, changed } = result;
    expect(why(notMapped, 'trainer.experiment_name')).toMatch(/output of a program, \$\(date \+%s\)/);
    expect(why(notMapped, 'an argument')).toMatch(/\$@/);
    expect(why(notMapped, 'actor_rollout_ref.rollout.mystery_switch')).toMatch(/not known here.*3/);
    expect(why(changed, 'custom_reward_function.path')).toBe('is now reward.custom_reward_function.path');
    expect(why(withoutEffect, 'actor_rollout_ref.actor.shuffle')).toMatch(/happens here anyway/);
    expect(why(withoutEffect, 'data.seed')).toMatch(/taken away/);
    expect(why(changed, 'actor_rollout_ref.model.path')).toMatch(/hub/);
  });

  it('loses no key', () => {
    const said = new Set([
      ...result.mapped,
      ...[...result.notMapped, ...result.withoutEffect].map(({ key }) => key),
    ]);
    const given = [...GRPO.matchAll(/^ {4}.*$/gm)].flatMap(([line]) =>
      [...line.matchAll(/(?<= )[+~]?([a-z_]+(?:\.[a-z_0-9]+)+)(?==| )/g)].map((match) => match[1] as string),
    );
    expect(given.length).toBeGreaterThan(25);
    expect(given.filter((key) => !said.has(key))).toEqual([]);
  });
});

const PPO = `# as verl writes it into the output directory of a run
defaults:
  - actor@actor_rollout_ref.actor: dp_actor
  - _self_
data:
  tokenizer: null
  train_files: ~/data/rlhf/train.parquet
  val_files: [a.parquet, b.parquet]
  max_prompt_length: 512
  max_response_length: 512
  train_batch_size: 1024
  custom_cls: { path: null, name: null }
actor_rollout_ref:
  hybrid_engine: true
  model: { path: /models/m, lora_rank: 8, target_modules: [q_proj] }
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_max_token_len_per_gpu: 16384
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    rollout_n: \${oc.select:actor_rollout_ref.rollout.n,1}
    optim: { lr: 1e-6, warmup_style: cosine, lr_warmup_steps_ratio: 0.1 }
  ref:
    log_prob_max_token_len_per_gpu: \${oc.select:actor_rollout_ref.actor.ppo_max_token_len_per_gpu,8192}
  rollout:
    name: ???
    n: 1
    temperature: 1.0
    prompt_length: \${oc.select:data.max_prompt_length,512}
critic:
  ppo_mini_batch_size: \${..actor_rollout_ref.actor.ppo_mini_batch_size}
  model:
    path: \${oc.env:CRITIC_OF_NO_ONE}
  ppo_epochs: \${oc.select:actor_rollout_ref.actor.ppo_epochs,2}
  cliprange_value: \${oc.decode:"0.5"}
algorithm: { adv_estimator: gae, lam: 0.95, kl_penalty: full }
reward_model: null
trainer:
  device: npu
  total_epochs: 3
  project_name: verl
  default_local_dir: checkpoints/\${trainer.project_name}/x
`;

describe('defaults of variables, where a script is read', () => {
  const value = (assignments: string, text: string): unknown => {
    const { config, notMapped } = translate(
      'defaults.sh',
      `${assignments}\npython3 -m verl.trainer.main_ppo trainer.experiment_name=${text}`,
    );
    return (
      why(notMapped, 'trainer.experiment_name') ??
      (config['trainer'] as Record<string, unknown>)['experiment_name']
    );
  };

  it.each([
    [`A=${ref('A:-')}`, `x${ref('A:-8')}`, 'x8'],
    ['A=', `x${ref('A-8')}`, 'x'],
    ['A=1', `x${ref('A:-8')}`, 'x1'],
    ['', ref(`A:-"${ref(`B:-"${ref('C-x')}/y"`)}/z"`), 'x/y/z'],
    ['B=b', `${ref(`A:-${ref('B')}`)}c`, 'bc'],
    ['', ref('A:-a\\}b'), 'a}b'],
    ['', `x$(basename "$(dirname /a/b)")y`, 'holds the output of a program, $(basename "$(dirname /a/b)")'],
    ['A=$(date)', ref('A:-8'), 'holds the output of a program, $(date)'],
    ['A=$(date)', ref(`B:-${ref('A:-8')}`), 'holds the output of a program, $(date)'],
    ['', ref('A:-a b'), 'holds a default of several words, a b'],
  ])('%s, %s', (assignments, text, expected) => {
    expect(value(assignments, text)).toEqual(expected);
  });
});

describe('a YAML file', () => {
  const { config, ...notes } = translate('ppo.yaml', PPO, ['algorithm.gamma=0.99', 'data.shuffle=False']);

  it('has its references resolved and older names replaced', () => {
    expect(config).toMatchObject({
      data: { val_files: ['a.parquet', 'b.parquet'], shuffle: false },
      actor_rollout_ref: {
        model: { lora_rank: 8, target_modules: ['q_proj'] },
        actor: { clip_ratio_high: 0.28, optim: { lr_scheduler_type: 'cosine', lr_warmup_steps_ratio: 0.1 } },
        ref: { log_prob_max_token_len_per_gpu: 16384 },
      },
      critic: { ppo_epochs: 1 },
      algorithm: { adv_estimator: 'gae', lam: 0.95, gamma: 0.99 },
      trainer: { total_epochs: 3, default_local_dir: 'checkpoints/verl/x' },
    });
    expect(why(notes.changed, 'actor_rollout_ref.actor.optim.warmup_style')).toMatch(/lr_scheduler_type/);
    expect(why(notes.changed, 'data.train_files')).toMatch(/is now "\/.*\/data\/rlhf\/train\.parquet"/);
  });

  it.each([
    ['critic.model.path', /environment has no CRITIC_OF_NO_ONE/],
    ['critic.cliprange_value', /resolvers other than/],
    ['algorithm.kl_penalty', /expected one of kl, .* got "full"/],
    ['trainer.device', /expected one of auto, cpu, cuda, got "npu"/],
  ])('%s is not mapped', (key, reason) => {
    expect(why(notes.notMapped, key)).toMatch(reason);
    expect(leafPaths(config)).not.toContain(key);
  });

  it('names the defaults that differ', () => {
    expect(notes.defaults.map(({ key }) => key)).toContain('trainer.n_gpus_per_node');
    expect(notes.defaults.map(({ key }) => key)).not.toContain('actor_rollout_ref.actor.clip_ratio_low');
  });

  it('of the SFT trainer has its own keys', () => {
    const sft = translate(
      'sft.yaml',
      'data: { train_files: a.parquet, multiturn: { enable: true, messages_key: messages } }\nmodel: { partial_pretrain: /m }\n',
    );
    expect(sft).toMatchObject({
      program: 'sft',
      config: { data: { train_files: 'a.parquet', messages_key: 'messages' }, model: { path: '/m' } },
    });
  });
});

describe('bad input', () => {
  const doubled = `A+=("\${A[@]}")\n`;
  it.each([
    ['notes.txt', 'nothing of the kind', /expected a YAML file.*verl\.trainer\.main_ppo/],
    ['list.yaml', '- a\n', /expected a mapping/],
    ['broken.yaml', 'a: [', /not valid YAML/],
    ['circle.yaml', 'a: &a { b: *a }', /circle\.yaml: an anchor contains itself/],
    ['minus.sh', `verl.trainer.main_ppo a.b=$((${'-'.repeat(100_000)}1))`, /nested too deeply/],
    ['more.sh', `A=(x=1)\n${doubled.repeat(18)}verl.trainer.main_ppo`, /nested too deeply/],
  ])('%s', (name, text, message) => {
    expect(() => translate(name, text)).toThrow(message);
  });

  it('a script that is cut off, or asks for what would be run, ends with what could be read', () => {
    const { config, notMapped } = translate(
      'cut.sh',
      'python -m verl.trainer.main_ppo a.b=`rm -rf /` data.seed=$((1/0)) trainer.seed=3 data.train_files="[\'x',
    );
    expect(config).toMatchObject({ trainer: { seed: 3 } });
    expect(notMapped.map(({ key }) => key)).toEqual(['a.b', 'data.seed', "data.train_files=['x"]);
  });

  it('__proto__ does no harm', () => {
    const { notMapped } = translate(
      'evil.sh',
      'verl.trainer.main_ppo __proto__.x=1 data.constructor.y=2 data.seed=1',
    );
    expect(notMapped.map(({ key }) => key)).toEqual(['data.constructor', '__proto__']);
    expect(({} as Record<string, unknown>)['x']).toBeUndefined();
  });
});

it('how many ranks decode together is what the script says, not what is the default of an engine of verl', () => {
  const key = 'actor_rollout_ref.rollout.tensor_model_parallel_size';
  const imported = (...keys: string[]): unknown =>
    getPath(translate('tp.sh', `python -m verl.trainer.main_ppo data.seed=1 ${keys.join(' ')}`).config, key);
  expect(imported()).toBeUndefined();
  expect(imported(`${key}=2`)).toBe(2);
});

describe('troupe import-verl', () => {
  const OPTIONS = { out: null, allowMissing: true, version: 'main' };
  const script = write('run.sh', GRPO.replace('Qwen/Qwen2-7B-Instruct', './model'));

  it('writes a configuration that loads, with the report in front', () => {
    const out = join(directory, 'out.yaml');
    let said = '';
    expect(importVerlCommand(script, [], { ...OPTIONS, out, write: (text) => (said += text) })).toBe(0);
    expect(said).toContain('NOT MAPPED');
    expect(said).toContain(`written to ${out}`);
    expect(loadConfig(out).actor_rollout_ref.rollout.n).toBe(5);
    expect(readFileSync(out, 'utf8')).toMatch(
      /^# From .*run\.sh: \d+ keys mapped, for troupe train; defaults of verl main$/m,
    );
  });

  it('nothing in the source leaves the comment of the report, or moves the cursor', () => {
    let said = '';
    const file = write('cursor.yaml', '"data\\rtrainer: {}\\e[2J": 1\ndata: { train_batch_size: 8 }\n');
    importVerlCommand(file, [], { ...OPTIONS, write: (text) => (said += text) });
    expect(said).toContain('data\\rtrainer: {}\\x1b[2J');
    expect([...said].filter((character) => character < ' ' && character !== '\n')).toEqual([]);
  });

  it('never writes over a file', () => {
    const out = write('mine.yaml', 'mine');
    expect(() => importVerlCommand(script, [], { ...OPTIONS, out, write: () => {} })).toThrow(
      /cannot write .*mine\.yaml: it is there already: choose another file/,
    );
    expect(readFileSync(out, 'utf8')).toBe('mine');
    expect(existsSync(`${out}.tmp`)).toBe(false);
  });

  it('leaves nothing behind on a full disk, and says that it is full', () => {
    const out = join(directory, 'full.yaml');
    const { writeFileSync: write } = fs;
    const full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
    jest.spyOn(fs, 'writeFileSync').mockImplementation((file, _, options) => {
      write(file, 'some of it', options);
      throw full;
    });
    let thrown: unknown;
    try {
      importVerlCommand(script, [], { ...OPTIONS, out, write: () => {} });
    } catch (error) {
      thrown = error;
    }
    jest.restoreAllMocks();
    expect(thrown).toMatchObject({
      code: 'NO_SPACE',
      message: `cannot write ${out}: the disk is full (${full.message}); nothing was left behind`,
    });
    expect(existsSync(out)).toBe(false);
  });

  it('says what is left to be put right', () => {
    let said = '';
    importVerlCommand(script, ['data.train_batch_size=300'], {
      ...OPTIONS,
      write: (text) => (said += text),
    });
    expect(said).toMatch(
      /^# To be put right before it can run:\n# {3}actor_rollout_ref\.actor\.ppo_mini_batch_size: /m,
    );
  });
});
