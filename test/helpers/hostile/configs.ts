// YAML files and overrides.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig, loadSftConfig } from '../../../ts/config/config';
import type { Cases, HostileCase } from './case';

const MINIMAL = `
data: { train_files: train.jsonl, train_batch_size: 64 }
actor_rollout_ref:
  model: { path: model }
  actor: { ppo_mini_batch_size: 16 }
`;

/** Keys that size something, each with values that no run has. */
const SIZES = [
  'trainer.n_gpus_per_node',
  'trainer.num_threads',
  'trainer.nnodes',
  'trainer.total_epochs',
  'trainer.total_training_steps',
  'trainer.log_val_generations',
  'data.train_batch_size',
  'data.val_batch_size',
  'data.gen_batch_size',
  'data.max_prompt_length',
  'data.max_response_length',
  'actor_rollout_ref.rollout.n',
  'actor_rollout_ref.rollout.val_kwargs.n',
  'actor_rollout_ref.actor.ppo_mini_batch_size',
  'actor_rollout_ref.actor.ppo_epochs',
  'actor_rollout_ref.actor.ppo_max_token_len_per_gpu',
  'actor_rollout_ref.actor.ulysses_sequence_parallel_size',
  'actor_rollout_ref.model.lora_rank',
  'critic.ppo_epochs',
  'critic.ppo_max_token_len_per_gpu',
  'reward.num_workers',
  'reward.max_concurrent',
  'reward.sandbox.max_processes',
  'reward.sandbox_fusion.max_concurrent',
  'reward.reward_model.n_gpus_per_node',
];
const VALUES = ['1e18', '-5', '2.5'];

const NUMBERS: readonly [key: string, value: string][] = [
  ['actor_rollout_ref.rollout.temperature', '1e-300'],
  ['actor_rollout_ref.rollout.temperature', '1e300'],
  ['actor_rollout_ref.rollout.val_kwargs.temperature', '-1'],
  ['actor_rollout_ref.rollout.top_p', '0'],
  ['actor_rollout_ref.rollout.top_k', '0'],
  ['actor_rollout_ref.actor.optim.lr', '1e300'],
  ['actor_rollout_ref.actor.optim.lr', '-1'],
  ['actor_rollout_ref.actor.optim.betas', '[0.9]'],
  ['actor_rollout_ref.actor.optim.betas', '[0.9,2]'],
  ['actor_rollout_ref.nccl_timeout', '1e300'],
  ['reward.timeout', '1e300'],
  ['reward.sandbox.memory_limit_mb', '1e18'],
  ['reward.sandbox.max_output_mb', '1e18'],
  ['trainer.memory_per_rank', '0'],
  ['logging.prometheus.port', '65536'],
];

const LONG = 'x'.repeat(10_000_000);

/** name, text of the file, what the message names besides the file. */
const files = (): [string, string | Buffer, ...string[]][] => [
  ['a key of 10 MB', `${MINIMAL}? ${LONG}\n: 1\n`, 'unknown key xxxxxxxx', '10000000 characters'],
  [
    'a key of 1 MB in a section',
    `${MINIMAL}algorithm: { ? ${'y'.repeat(1_000_000)} : 1 }\n`,
    'algorithm.yyy',
  ],
  ['a key with control characters', `${MINIMAL}"\\e[31mred": 1\n`, 'unknown key \\x1b[31mred'],
  ['a key of one letter', `${MINIMAL}x: 1\n`, 'unknown key x: the keys here are'],
  ['__proto__', `${MINIMAL}__proto__: { polluted: 1 }\n`, '__proto__'],
  ['constructor', `${MINIMAL}constructor: 1\n`, 'constructor'],
  ['brackets without end', `a: ${'['.repeat(100_000)}`, 'hostile_'],
  ['brackets that close', `a: ${'['.repeat(100_000)}${']'.repeat(100_000)}`, 'hostile_'],
  ['many levels', `a: ${'{a: '.repeat(60)}1${'}'.repeat(60)}`, 'at most 50 levels'],
  ['an anchor that contains itself', 'a: &x [*x]\n', 'an anchor contains itself'],
  [
    'anchors that double',
    `a0: &a0 [1,1]\n${Array.from({ length: 40 }, (_, i) => `a${i + 1}: &a${i + 1} [*a${i}, *a${i}]`).join('\n')}\n`,
    'anchors are expanded',
  ],
  [
    'no UTF-8',
    Buffer.concat([Buffer.from(`${MINIMAL}# `), Buffer.from([0xff, 0xfe, 0x0a])]),
    ':6: not valid UTF-8',
  ],
  ['nothing but zeros', Buffer.alloc(1000), 'YAML'],
  ['a list', '[1, 2]', 'expected a mapping of sections'],
  ['a word', 'hello', 'expected a mapping of sections'],
  ['a number', '42', 'expected a mapping of sections'],
  ['the same key twice', 'a: 1\na: 2\n', ':2:', 'YAML'],
  ['tabs', 'a:\n\tb: 1\n', 'YAML'],
  ['20 MB of comments', `#${'x'.repeat(20_000_000)}\n`, 'expected at most 16777216 bytes'],
  ['a section that is a number', `${MINIMAL}critic: 5\n`, 'critic: expected a section'],
  ['a section that is a list', `${MINIMAL}critic: [1]\n`, 'critic: expected a section'],
  [
    '100 000 unknown keys',
    MINIMAL + Array.from({ length: 20_000 }, (_, i) => `k${i}: 1`).join('\n'),
    'more mistakes',
  ],
  ['a value of 10 MB', `${MINIMAL}trainer: { device: "${LONG}" }\n`, 'trainer.device: expected one of'],
  ['a value with control characters', `${MINIMAL}trainer: { device: "\\e]0;title\\a" }\n`, 'trainer.device'],
  ['references that grow', growing(), 'without end'],
  [
    'a reference to itself',
    `${MINIMAL}trainer: { project_name: "\${trainer.project_name}" }\n`,
    'refers to itself',
  ],
  [
    'references within references',
    `${MINIMAL}trainer: { project_name: "${'${'.repeat(10_000)}a${'}'.repeat(10_000)}" }\n`,
    'trainer.project_name',
  ],
  [
    'a reference that is not closed',
    `${MINIMAL}trainer: { project_name: "\${${LONG}" }\n`,
    'trainer.project_name',
  ],
];

function growing(): string {
  const lines = Array.from({ length: 40 }, (_, i) => `  p${i}: "\${x.p${i + 1}}\${x.p${i + 1}}"`);
  return `x:\n${lines.join('\n')}\n  p40: a\n`;
}

const OVERRIDES: readonly [string, string, ...string[]][] = [
  ['100 KB without a value', 'x'.repeat(100_000), "override 'xxx"],
  ['100 KB of a key', `${'a'.repeat(100_000)}=1`, 'unknown key aaa'],
  ['100 000 levels', `${'a.'.repeat(100_000)}a=1`, 'overrides', 'levels of keys'],
  ['control characters', '\u001b[2Jtrainer.seed', "override '\\x1b[2J"],
  ['brackets without end', `trainer.logger=${'['.repeat(100_000)}`, "override 'trainer.logger"],
  ['braces without end', `trainer.logger=${'{a:'.repeat(100_000)}`, "override 'trainer.logger"],
  [
    'brackets that close',
    `trainer.logger=${'['.repeat(100_000)}${']'.repeat(100_000)}`,
    'brackets within brackets',
  ],
  ['a quote that is not closed', `trainer.logger=["${'x'.repeat(100_000)}`, "override 'trainer.logger"],
  ['something behind a list', `trainer.logger=[a]${'\u0007'.repeat(1000)}`, 'unexpected'],
  ['no key', '=1', "override '=1'"],
  ['nothing', '', "override ''"],
  ['a key below a value', 'data.train_files.x=1', 'data.train_files'],
  ['a key that is not there', '~trainer.nothing', 'trainer.nothing'],
  ['__proto__', '__proto__.x=1', '__proto__'],
  ['a bidirectional text', 'trainer.\u202egnp=1', 'override'],
];

export const configCases: Cases = (directory) => {
  const cases: HostileCase[] = [];
  const minimal = join(directory, 'minimal.yaml');
  writeFileSync(minimal, MINIMAL);
  for (const key of SIZES) {
    for (const value of VALUES) {
      cases.push({
        name: `${key}=${value}`,
        place: [key],
        run: () => loadConfig(minimal, [`${key}=${value}`]),
      });
    }
  }
  for (const [key, value] of NUMBERS)
    cases.push({
      name: `${key}=${value}`,
      place: [key],
      run: () => loadConfig(minimal, [`${key}=${value}`]),
    });
  files().forEach(([name, text, ...place], i) => {
    const file = join(directory, `hostile_${i}.yaml`);
    writeFileSync(file, text);
    cases.push({ name: `a file with ${name}`, place, run: () => loadConfig(file) });
  });
  for (const [name, override, ...place] of OVERRIDES)
    cases.push({ name: `an override with ${name}`, place, run: () => loadConfig(minimal, [override]) });
  mkdirSync(join(directory, 'a_directory'));
  for (const [name, path] of [
    ['a directory', join(directory, 'a_directory')],
    ['a device', '/dev/zero'],
    ['nothing', join(directory, 'nothing.yaml')],
    ['a path with a zero', `${directory}/a\u0000b`],
  ] as const) {
    cases.push({
      name: `${name} as a file`,
      place: ['cannot read the configuration'],
      run: () => loadConfig(path),
    });
  }
  cases.push(
    {
      name: 'too many sequences in all',
      place: ['data.train_batch_size', '1000000 prompts x actor_rollout_ref.rollout.n 1000'],
      run: () => loadConfig(minimal, ['data.train_batch_size=1000000', 'actor_rollout_ref.rollout.n=1000']),
    },
    {
      name: 'the keys of train in a file for sft',
      place: ['unknown key actor_rollout_ref'],
      run: () => loadSftConfig(minimal),
    },
  );
  return cases;
};
