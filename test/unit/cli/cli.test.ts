// The program as people run it; nothing here starts a worker.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../../..');
const directory = mkdtempSync(join(tmpdir(), 'cli-'));
const config = join(directory, 'run.yaml');
const END_ONCE_TOLD = join(ROOT, 'test', 'helpers', 'end_once_told.cjs');

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

const troupe = (...args: string[]) => troupeWith(process.env, ...args);

function troupeWith(env: NodeJS.ProcessEnv, ...args: string[]) {
  const run = spawnSync(process.execPath, [join(ROOT, 'dist', 'cli.js'), ...args], {
    encoding: 'utf8',
    cwd: directory,
    env,
  });
  return { code: run.status, stdout: run.stdout, stderr: run.stderr };
}

const usageErrors: [args: string[], message: RegExp][] = [
  [[], /Expected a command/],
  [['bogus'], /Unknown command: bogus/],
  [['trian', 'run.yaml'], /There is no command trian: did you mean train\?/],
  [['train'], /Expected a configuration file/],
  [
    ['train', config, '--fast'],
    /Unknown argument: fast; keys of the configuration have no --, as in trainer\.seed=2; /,
  ],
  [
    ['train', '--config-path=conf', '--config-name=run', 'trainer.seed=3'],
    /Unknown arguments: config-path, config-name; a configuration is named by its path, as in troupe train conf\/run\.yaml; /,
  ],
  [['train', config, '--trainer.seed=3'], /Unknown argument: trainer\.seed; keys /],
  [['generate', '--model=m', '--prompt=a', '--top-n=2', '--fast'], /Unknown arguments: top-n, fast; see /],
  [['submit', config, '--launcher=slurm', '--time=4h'], /submit: --time: expected minutes, .* got 4h/],
  [['generate', '--prompt', 'a'], /Missing required argument: model/],
  [['generate', '--model', 'm'], /expected --prompt TEXT or --prompts FILE/],
  [['generate', '--model', 'm', '--prompt', 'a', '--n', 'many'], /--n: expected a number, got many/],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--n', '1.5'],
    /error: generate: --n: expected an integer from 1 to 65536/,
  ],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--max-new-tokens=0'],
    /error: generate: --max-new-tokens: expected an integer from 1 to \d+ but got 0/,
  ],
  [['generate', '--model', 'm', '--prompt', 'a', '--top-p=2'], /error: generate: --top-p: expected a number/],
  [
    ['serve', 'no/such/model', '--served-model-name='],
    /error: --served-model-name: expected a text that is not empty/,
  ],
  [['serve', 'm', '--host', ''], /error: --host: expected a text that is not empty/],
  [['ui', '--host='], /error: --host: expected a text that is not empty/],
  [['serve', ''], /error: <model>: expected a text that is not empty/],
  [['generate', '--model', '', '--prompt', 'a'], /error: --model: expected a text that is not empty/],
  [['import-verl', 'a.yaml', '-o', ''], /error: -o: expected a text that is not empty/],
  [['import-verl', 'a.yaml', '--output='], /error: --output: expected a text that is not empty/],
  [['export', 'a', ''], /error: <out>: expected a text that is not empty/],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--seed', '1e30'],
    /--seed: expected an integer >= 0 \(of at most 9007199254740991\) but got 1e\+30/,
  ],
  [['serve', 'm', '--port=http'], /--port: expected a number, got http/],
  [['serve', 'm', '--host', 'a', '--host=b'], /--host is given 2 times: expected it once/],
  [['generate', '--model', 'm', '--model', 'n', '--prompt', 'a'], /--model is given 2 times/],
  [['import-verl', 'a.yaml', '-o', 'b', '--output', 'c'], /(--output|-o) is given 2 times/],
  [['serve', 'm', '--port', '0', '--port', '1'], /--port is given 2 times: expected it once/],
  [['plan', 'a.yaml', '--gpus=4', '--gpus', '1'], /--gpus is given 2 times: expected it once/],
  [['plan', 'a.yaml', '--gpu-memory=1GiB', '--gpu-memory=2GiB'], /--gpu-memory is given 2 times/],
  [['generate', '--model', 'm', '--prompt', 'a', '--n', '2', '--n', '1'], /-n is given 2 times/],
  [['generate', '--model', 'm', '--prompt', 'a', '-n2', '--n=1'], /-n is given 2 times/],
  [['generate', '--model', 'm', '--prompt', 'a', '-n', 'two'], /-n: expected a number, got two/],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--no-seed'],
    /--no-seed: there is no such option: --seed takes a value/,
  ],
  [['generate', '--model', 'm', '--no-prompt'], /--no-prompt: there is no such option/],
  [['generate', '--no-model', '--prompt', 'a'], /--no-model: there is no such option/],
  [['eval', 'a.jsonl', '--no-output'], /--no-output: there is no such option: --output takes a value/],
  [['ui', '--no-host'], /--no-host: there is no such option: --host takes a value/],
  [['serve', 'm', '--no-api-key'], /--no-api-key: there is no such option: --api-key takes a value/],
  [
    ['generate', '--model', 'm', '--prompt', 'a', '--temperature', '-1'],
    /temperature: expected 0 \(greedy\), or a number from 0.000001/,
  ],
  [['train', config, 'trainer.sedd=3'], /unknown key trainer\.sedd: did you mean trainer\.seed\?/],
  [['train', config, 'trainer.seed'], /override 'trainer\.seed'/],
  [['train', config, '--', 'trainer.sedd=3'], /trainer\.sedd/],
  [
    ['train', config, 'trainer.seed=12345678901234567890'],
    /trainer\.seed: expected an integer >= 0 \(of at most 9007199254740991\), got 12345678901234567000/,
  ],
  [
    ['train', config, 'data.seed=-1e20'],
    /data\.seed: expected an integer, or null \(from -9007199254740991\)/,
  ],
  [
    ['host-agent', '--controller=a:1', '--token-file=nowhere'],
    /--token-file: cannot read nowhere .*ENOENT.*token of the run/,
  ],
  [['host-agent', '--controller=a:1', '--token-file=/dev/null'], /--token-file: \/dev\/null is empty/],
  [['train', config, 'actor_rollout_ref.actor.ppo_mini_batch_size=3'], /ppo_mini_batch_size/],
  [
    ['host-agent', '--controller=127.0.0.1:99999', '--token-file=nowhere'],
    /--controller: expected host:port, got 127\.0\.0\.1:99999/,
  ],
  [['host-agent', '--controller=host', '--token-file=nowhere'], /--controller: expected host:port, got host/],
  [['export', 'run', 'out', 'more'], /Expected no further words after those of export, got more; see/],
  [['foo'], /There is no command foo: did you mean sft\?; see/],
  [['export', 'run'], /Expected a checkpoint and a new directory/],
  [['serve'], /Expected the directory of a model/],
  [['import-verl'], /Expected a YAML file or a launch script of verl/],
  [['agent', '--task=x'], /Expected try and a configuration file/],
  [['export', 'run', 'out', '--max-shard-size', 'big'], /expected a size such as 5GB, got big/],
  [['export', 'run', 'out', '--base', 'm'], /--base is of use with --merge-lora only/],
  [['validate', 'missing.yaml'], /cannot read the configuration missing\.yaml/],
];

test('host-agent reads its number from an indexed job, where that says one', () => {
  const agent = ['host-agent', '--controller=a:1', '--token-file=/dev/null'];
  const wrong = troupeWith({ ...process.env, JOB_COMPLETION_INDEX: 'first' }, ...agent);
  expect([wrong.code, wrong.stderr]).toEqual([
    2,
    expect.stringMatching(/error: host-agent: JOB_COMPLETION_INDEX: expected an integer >= 0, got first/),
  ]);
  const none = troupeWith({ ...process.env, JOB_COMPLETION_INDEX: '' }, ...agent, '--index=-1');
  expect(none.stderr).toMatch(/error: host-agent: --index: expected an integer >= 0, got -1/);
});

test.each(usageErrors)('%j: exit code 2 and one message', (args, message) => {
  const { code, stdout, stderr } = troupe(...args);
  expect(code).toBe(2);
  expect(stdout).toBe('');
  expect(stderr).toMatch(/^troupe: error/);
  expect(stderr).toMatch(message);
  expect(stderr.trim().split('\n')).toHaveLength(1);
});

test('a configuration of the other program says so, and what is wrong with it all the same', () => {
  const examples = join(directory, 'sft.yaml');
  writeFileSync(examples, 'model: { path: m }\ndata: { train_files: a.jsonl, train_batch_size: 4 }\n');
  const [trained, tuned] = [troupe('train', 'sft.yaml'), troupe('sft', config)];
  expect([trained.code, tuned.code]).toEqual([2, 2]);
  const [first, ...rest] = trained.stderr.split('\n');
  expect(first).toMatch(/sft\.yaml is for troupe sft: it has a section model, and no actor_rollout_ref/);
  expect(rest.join('\n')).toMatch(/unknown key model/);
  expect(tuned.stderr.split('\n')[0]).toMatch(
    /run\.yaml is for troupe train: it has a section actor_rollout_ref/,
  );
  // A mistake in one of its own is none of that.
  expect(troupe('train', config, 'trainer.sedd=3').stderr).not.toMatch(/is for troupe/);
});

test('a machine without sbatch is not a scheduler that refuses', () => {
  const path = join(directory, 'empty');
  mkdirSync(path);
  const { code, stderr } = troupeWith({ ...process.env, PATH: path }, 'submit', '--launcher=slurm', config);
  expect(code).toBe(1);
  expect(stderr).toMatch(/there is no sbatch on this machine .*--dry-run/);
});

test.each([
  [
    'a promise',
    "return Promise.reject(new Error('too late'))",
    /A promise was rejected, and nobody waited for it/,
  ],
  ['an error', "throw new Error('too late')", /An error was thrown where nobody could catch it/],
])('%s that code of the user has left behind names its place', (_, statement, message) => {
  const module = join(directory, 'leaves.cjs');
  writeFileSync(module, `setImmediate(function later() {\n  ${statement};\n});\n`);
  // A command that goes on until it is ended.
  const args = ['--require', module, join(ROOT, 'dist', 'cli.js'), 'ui', directory];
  const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect(status).toBe(1);
  const [first, second] = stderr.split('\n');
  expect(first).toBe('troupe: error: too late');
  expect(second).toMatch(message);
  expect(second).toMatch(/, at .*leaves\.cjs:2\. .* has to await its promises, or catch what they throw/);
});

test('what an agent has not waited for ends with its trajectory, and that is all', () => {
  const module = join(directory, 'ends.cjs');
  const ended = join(ROOT, 'dist', 'agent', 'trajectory_ended.js');
  writeFileSync(
    module,
    `const { TrajectoryEnded } = require(${JSON.stringify(ended)});
    setImmediate(() => {
      setImmediate(() => process.kill(process.pid, 'SIGKILL'));
      return Promise.reject(new TrajectoryEnded('over'));
    });`,
  );
  const args = ['--require', module, join(ROOT, 'dist', 'cli.js'), 'ui', directory];
  const { signal, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect({ signal, stderr }).toEqual({ signal: 'SIGKILL', stderr: '' });
});

test.each([
  ['ui', () => [directory], /runs of .* at http/],
  [
    'retriever',
    () => {
      const corpus = join(directory, 'corpus.jsonl');
      writeFileSync(corpus, `${JSON.stringify({ id: '1', contents: 'a passage' })}\n`);
      return [corpus, '--port', '0'];
    },
    /1 passages .* at http/,
  ],
])('%s ends by itself when asked to in the moment in which it says that it runs', (name, args, told) => {
  const { status, signal, stdout } = spawnSync(
    process.execPath,
    ['--require', END_ONCE_TOLD, join(ROOT, 'dist', 'cli.js'), name, ...args()],
    { encoding: 'utf8', env: { ...process.env, TROUPE_TEST_TOLD: told.source } },
  );
  expect(stdout).toMatch(told);
  expect({ status, signal }).toEqual({ status: 0, signal: null });
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
