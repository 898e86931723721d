// The program as people run it; nothing here starts a worker.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../../..');
const directory = mkdtempSync(join(tmpdir(), 'cli-'));
const config = join(directory, 'run.yaml');

beforeAll(() => {
  writeFileSync(
    config,
    `
data: { train_files: train.jsonl, val_files: val.jsonl, train_batch_size: 4, max_prompt_length: 8, max_response_length: 8 }
actor_rollout_ref:
  model: { path: model }
  actor: { ppo_mini_batch_size: 2 }
  rollout: { n: 4, enforce_eager: true }
algorithm: { adv_estimator: grpo }
trainer: { default_local_dir: ${join(directory, 'run')} }
`,
  );
});

function troupe(...args: string[]) {
  const run = spawnSync(process.execPath, [join(ROOT, 'dist', 'cli.js'), ...args], {
    encoding: 'utf8',
    cwd: directory,
  });
  return { code: run.status, stdout: run.stdout, stderr: run.stderr };
}

const usageErrors: [args: string[], message: RegExp][] = [
  [[], /Expected a command/],
  [['bogus'], /Unknown command: bogus/],
  [['trian', 'run.yaml'], /Did you mean train\?/],
  [['train'], /Expected a configuration file/],
  [['train', config, '--fast'], /Unknown argument: fast/],
  [['generate', '--prompt', 'a'], /Missing required argument: model/],
  [['generate', '--model', 'm'], /expected --prompt TEXT or --prompts FILE/],
  [['generate', '--model', 'm', '--prompt', 'a', '--n', 'many'], /--n: expected a number, got many/],
  [['generate', '--model', 'm', '--prompt', 'a', '--n', '1.5'], /n: expected an integer from 1 to 65536/],
  [['serve', 'm', '--port=http'], /--port: expected a number, got http/],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--temperature', '-1'],
    /temperature: expected 0 \(greedy\), or a number from 0.000001/,
  ],
  [['train', config, 'trainer.sedd=3'], /unknown key trainer\.sedd: did you mean trainer\.seed\?/],
  [['train', config, 'trainer.seed'], /override 'trainer\.seed'/],
  [['train', config, '--', 'trainer.sedd=3'], /trainer\.sedd/],
  [['train', config, 'actor_rollout_ref.actor.ppo_mini_batch_size=3'], /ppo_mini_batch_size/],
  [['export', 'run'], /Expected a checkpoint and a new directory/],
  [['export', 'run', 'out', '--max-shard-size', 'big'], /expected a size such as 5GB, got big/],
  [['export', 'run', 'out', '--base', 'm'], /--base is of use with --merge-lora only/],
  [['validate', 'missing.yaml'], /cannot read the configuration missing\.yaml/],
];

test.each(usageErrors)('%j: exit code 2 and one message', (args, message) => {
  const { code, stdout, stderr } = troupe(...args);
  expect(code).toBe(2);
  expect(stdout).toBe('');
  expect(stderr).toMatch(/^troupe: error/);
  expect(stderr).toMatch(message);
  expect(stderr.trim().split('\n')).toHaveLength(1);
});

test('a failure: exit code 1 and one message; with --debug the stack', () => {
  const args = ['generate', '--model', 'nowhere', '--prompt', 'a'];
  const { code, stdout, stderr } = troupe(...args);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(/^troupe: error \(INVALID_MODEL\): .*nowhere.*\n$/);
  expect(troupe(...args, '--debug').stderr).toMatch(/\n +at .*\n/);
});

test('help and version', () => {
  for (const args of [['--help'], ['train', '--help'], ['generate', '-h'], ['bench', '--help']]) {
    const { code, stdout, stderr } = troupe(...args);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(/bench|troupe/);
  }
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  expect(troupe('--version').stdout.trim()).toBe(version);
});

test('validate: YAML that can be used again, sizes and notes as comments', () => {
  const overrides = ['+trainer.seed=3', 'algorithm.kl_ctrl.kl_coef=-1', 'trainer.project_name="1.0"'];
  const { code, stdout, stderr } = troupe('validate', config, ...overrides);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toContain('4 prompts x 4 responses = 16 sequences');
  expect(stdout).toMatch(/^# {3}actor_rollout_ref\.rollout\.enforce_eager: /m);
  expect(stdout).toMatch(/^ {2}seed: 3$/m);
  expect(stdout).toMatch(/^# {3}data\.train_files, /m);
  expect(stdout).toContain('#   algorithm.kl_ctrl.kl_coef: -1 (the file: default)');
  expect(stdout).toMatch(/^ {4}kl_coef: -1$/m);

  writeFileSync(join(directory, 'resolved.yaml'), stdout);
  const again = troupe('validate', 'resolved.yaml');
  expect(again.stderr).toBe('');
  const tree = (text: string): string => text.slice(text.indexOf('\n\n'));
  expect(tree(again.stdout)).toBe(tree(stdout));
});

test('validate shows references to the environment, also of overrides, and not what is there', () => {
  const reference = '$' + '{oc.env:TROUPE_TEST_SECRET}';
  const args = [join(ROOT, 'dist', 'cli.js'), 'validate', config, `trainer.project_name=${reference}`];
  const { status, stdout } = spawnSync(process.execPath, args, {
    encoding: 'utf8',
    cwd: directory,
    env: { ...process.env, TROUPE_TEST_SECRET: 'not-to-be-shown' },
  });
  expect(status).toBe(0);
  expect(stdout).toContain(`#   trainer.project_name: "${reference}" (the file: default)`);
  expect(stdout).not.toContain('not-to-be-shown');
});

test('validate reads a configuration that can be read only once', () => {
  const command = `"$0" "$1" validate <(cat "$2")`;
  const run = spawnSync('bash', ['-c', command, process.execPath, join(ROOT, 'dist', 'cli.js'), config], {
    encoding: 'utf8',
    cwd: directory,
  });
  expect({ code: run.status, stderr: run.stderr }).toEqual({ code: 0, stderr: '' });
  expect(run.stdout).toContain('4 prompts x 4 responses = 16 sequences');
});

test('import-verl: a configuration that validates', () => {
  const script = join(directory, 'run.sh');
  const keys = 'data.train_files=a.parquet actor_rollout_ref.model.path=./m trainer.n_gpus_per_node=1';
  writeFileSync(
    script,
    `python3 -m verl.trainer.main_ppo ${keys} \\\n  algorithm.adv_estimator=rloo no.such=1\n`,
  );
  const { code, stdout, stderr } = troupe(
    'import-verl',
    script,
    'trainer.total_epochs=2',
    '--allow-missing',
    '-o',
    join(directory, 'v.yaml'),
  );
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(/NOT MAPPED: the run will differ in:\n {2}no: is not known here/);
  expect(troupe('validate', join(directory, 'v.yaml'))).toMatchObject({ code: 0, stderr: '' });
});

test('validate knows the configurations of troupe sft', () => {
  const sft = join(directory, 'sft.yaml');
  writeFileSync(sft, 'data: { train_files: a.jsonl, train_batch_size: 4 }\nmodel: { path: model }\n');
  const { code, stdout } = troupe('validate', sft, 'optim.lr=1e-3');
  expect(code).toBe(0);
  expect(stdout).toContain('is a valid configuration of troupe sft');
  expect(stdout).toMatch(/^ {2}lr: 0\.001$/m);
});
