// biome-ignore-all lint/suspicious/noTemplateCurlyInString: references of a configuration are written so
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { describeConfig, loadConfig, loadSftConfig } from '../../../ts/config/config';
import { withKey, writtenConfig } from '../../../ts/config/written_config';
import { Trainer } from '../../../ts/trainer/trainer';
import { FakeEngines, fakeData, lengthReward } from '../../helpers/fake_run';
import { serve } from '../../helpers/logged_run';

// What the environment holds never reaches a file or a server, wherever in a configuration it is asked for.

const SECRET = 'sk-1234-never-to-be-seen';
const NAMES = { TROUPE_TEST_SECRET: SECRET, TROUPE_TEST_OTHER: 'another-one-of-those' };
const reference = '${oc.env:TROUPE_TEST_SECRET}';
const before = { ...process.env };
beforeEach(() => Object.assign(process.env, NAMES));
afterEach(() => {
  process.env = { ...before };
});

const temporary = (): string => mkdtempSync(join(tmpdir(), 'secrets-'));
const yaml = (text: string): string => {
  const file = join(temporary(), 'run.yaml');
  writeFileSync(file, text);
  return file;
};

const BASE = `
data: { train_files: none.jsonl, train_batch_size: 2, max_prompt_length: 4, max_response_length: 4 }
critic: { model: { path: none }, ppo_mini_batch_size: 1 }
algorithm: { adv_estimator: grpo }
`;

/** Asked for in every way that there is. */
const everywhere = (directory: string, server: string): string =>
  yaml(`${BASE.replace('none.jsonl', `"${reference}/train.jsonl"`)}
actor_rollout_ref:
  model: { path: none, custom_chat_template: "a \${.path} \${oc.env:TROUPE_TEST_OTHER} b" }
  actor: { ppo_mini_batch_size: 1 }
  rollout: { n: 4 }
custom_reward_function:
  reward_kwargs:
    key: "${reference}"
    "dotted.name": { inner: "${reference}" }
    list: [1, "Bearer ${reference}", { deep: "${reference}" }]
    copy: "\${trainer.validation_data_dir}"
trainer:
  default_local_dir: ${JSON.stringify(directory)}
  validation_data_dir: "${directory}/\${oc.env:TROUPE_TEST_UNSET,plain}"
  rollout_data_dir: null
  total_training_steps: 2
  save_freq: 1
  val_before_train: false
  logger: [wandb, mlflow, tensorboard]
logging: { wandb: { base_url: "${server}" }, mlflow: { tracking_uri: "${server}" } }
`);

const files = (directory: string): string[] =>
  readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));

test('a whole run: the values are used, and are in no file, on no terminal and in no request', async () => {
  const server = await serve(({ path }) => {
    if (path === '/graphql')
      return {
        json: {
          data: { upsertBucket: { bucket: { name: 'x', project: { name: 'p', entity: { name: 'e' } } } } },
        },
      };
    if (path.includes('experiments')) return { json: { experiment: { experiment_id: '1' } } };
    return path.endsWith('runs/create') ? { json: { run: { info: { run_id: 'r' } } } } : { json: {} };
  });
  process.env['WANDB_API_KEY'] = 'k'.repeat(40);
  const directory = join(temporary(), 'run');
  const config = loadConfig(everywhere(directory, server.url));
  const kwargs = config.reward.custom_reward_function.reward_kwargs;
  expect(kwargs).toEqual({
    key: SECRET,
    'dotted.name': { inner: SECRET },
    list: [1, `Bearer ${SECRET}`, { deep: SECRET }],
    copy: `${directory}/plain`,
  });
  expect(config.data.train_files).toEqual([`${SECRET}/train.jsonl`]);
  const said: string[] = [];
  const trainer = new Trainer(config, {
    reward: lengthReward,
    engines: async (_, needs) => new FakeEngines().create(needs),
    data: async () => ({ ...fakeData(), validation: [] }),
    log: (line) => void said.push(line),
  });
  await trainer.fit();
  await server.close();

  expect(server.to(/graphql/)[0]?.body.variables.config).toContain('TROUPE_TEST_SECRET');
  const params = server.to(/log-batch/).flatMap(({ body }) => body.params ?? []);
  expect(params).toContainEqual(
    expect.objectContaining({ value: reference, key: expect.stringMatching(/reward_kwargs.key$/) }),
  );
  const written = files(directory);
  expect(written.length).toBeGreaterThan(8);
  const texts = [
    ...written.map((file) => readFileSync(file, 'latin1')),
    ...server.requests.map(({ body, path, headers }) => JSON.stringify([body, path, headers])),
    ...said,
    describeConfig(config),
  ];
  for (const text of texts) {
    expect(text).not.toContain(SECRET);
    expect(text).not.toContain(NAMES.TROUPE_TEST_OTHER);
  }
});

test('what is written down is read again as the same configuration', () => {
  const config = loadConfig(everywhere('/nowhere/run', 'http://localhost'));
  expect(loadConfig(yaml(describeConfig(config)))).toEqual(config);
  const names = yaml(`${BASE}
actor_rollout_ref: { model: { path: none }, actor: { ppo_mini_batch_size: 1 } }
trainer: { experiment_name: "${reference}" }`);
  const named = loadConfig(names);
  expect(named.trainer.default_local_dir).toBe(`checkpoints/troupe/${SECRET}`);
  expect(describeConfig(named)).not.toContain(SECRET);
  expect(loadConfig(yaml(describeConfig(named)))).toEqual(named);
});

test('keys under older names, and keys that take the value of another', () => {
  const config = loadSftConfig(
    yaml(`
data: { train_files: "${reference}", multiturn: { messages_key: "\${oc.env:TROUPE_TEST_OTHER}" } }
model: { partial_pretrain: "${reference}" }`),
  );
  expect(config.model.path).toBe(SECRET);
  expect(writtenConfig(config)).toMatchObject({
    data: { train_files: reference, messages_key: '${oc.env:TROUPE_TEST_OTHER}' },
    model: { path: reference },
  });
  // critic.model.tokenizer_path and others are written as they are; a derived key follows the one it is taken from.
  const derived = loadConfig(
    yaml(`${BASE}
actor_rollout_ref: { model: { path: "${reference}" }, actor: { ppo_mini_batch_size: 1 } }`),
  );
  expect(JSON.stringify(writtenConfig(derived))).not.toContain(SECRET);
});

test('also of a configuration that is put together from sections of a loaded one', () => {
  const config = loadConfig(everywhere('/nowhere/run', 'http://localhost'));
  const changed = { ...config, trainer: { ...config.trainer, save_freq: 9 } };
  const text = JSON.stringify(writtenConfig(changed));
  expect(text).toContain('"save_freq":9');
  expect(text).not.toContain(SECRET);
});

test('a configuration in which one key has another value, and what is beside it', () => {
  const file = yaml(`${BASE}
actor_rollout_ref: { model: { path: "${reference}" }, actor: { ppo_mini_batch_size: 1 } }
trainer: { project_name: "${reference}" }`);
  const config = loadConfig(file);
  const changed = withKey(config, 'actor_rollout_ref.model.read_images', true);
  expect(changed.actor_rollout_ref.model).toEqual({ ...config.actor_rollout_ref.model, read_images: true });
  expect(changed.actor_rollout_ref.actor).toBe(config.actor_rollout_ref.actor);
  const text = JSON.stringify(writtenConfig(changed));
  expect(text).toContain('"read_images":true');
  expect(text).not.toContain(SECRET);
  expect(text).toContain(JSON.stringify(reference));
});

test('a default that is used, and references to other keys, are written as what they are', () => {
  const file = yaml(`${BASE}
actor_rollout_ref: { model: { path: "\${trainer.project_name}" }, actor: { ppo_mini_batch_size: 1 } }
trainer: { project_name: "\${oc.env:TROUPE_TEST_UNSET,plain}" }`);
  expect(writtenConfig(loadConfig(file))).toMatchObject({
    actor_rollout_ref: { model: { path: 'plain' } },
    trainer: { project_name: 'plain' },
  });
});

test('import-verl writes references, also in its report', () => {
  const folder = temporary();
  mkdirSync(folder, { recursive: true });
  const out = join(folder, 'out.yaml');
  const file = yaml(`${BASE}
actor_rollout_ref: { model: { path: "${reference}" }, actor: { ppo_mini_batch_size: 1, nonsense: "${reference}" } }
custom_reward_function: { reward_kwargs: { key: "${reference}" } }
trainer: { nnodes: "${reference}" }`);
  expect(importVerlCommand(file, [], { out, allowMissing: true, version: null, write: () => {} })).toBe(0);
  const text = readFileSync(out, 'utf8');
  expect(text).not.toContain(SECRET);
  expect(text).toContain(`path: ${reference}`);
  expect(text).toContain(`key: ${reference}`);
  expect(text).toMatch(/nonsense: is not known here.*a value of the environment/);
});
