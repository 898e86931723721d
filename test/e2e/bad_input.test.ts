import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteFile } from 'hyparquet-writer';
import { listTree, runCommand } from '../helpers/e2e_process';
import {
  exampleRows,
  type ModelChanges,
  modelTensors,
  promptRows,
  VOCABULARY,
  Workspace,
  writeJsonLines,
  writeModel,
} from '../helpers/e2e_workspace';

// What someone meets who got something wrong: one message that names the culprit, the exit code of api.md (2 for the command
// line and the configuration, else 1), and nothing left behind.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  mkdirSync(file('empty'));
});
afterAll(() => workspace.remove());

const file = (name: string): string => workspace.file(name);

/** Expects `troupe train` with these overrides to fail with exactly one message, holding every part of `says`. */
async function fails(code: 1 | 2, says: readonly string[], overrides: readonly string[]): Promise<void> {
  await commandFails(code, says, ['train', file('train.yaml'), ...overrides]);
}

async function commandFails(
  code: 1 | 2,
  says: readonly string[],
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<void> {
  rmSync(file('run'), { recursive: true, force: true });
  const before = listTree(workspace.path);
  const result = await runCommand(args, { env });
  expect(result).toMatchObject({ code, signal: null });
  expect(result.stderr).toMatch(/^troupe: error/);
  expect(result.stderr.match(/error/g)).toHaveLength(1);
  expect(result.stderr).not.toMatch(/^\s+at /m);
  expect(result.stderr).not.toContain('not foreseen');
  expect(result.stderr.split('\n').length).toBeLessThan(8);
  for (const part of says) expect(result.stderr).toContain(part);
  // The run directory itself may stay, as proof that it can be written; nothing in it, and nothing elsewhere.
  expect(listTree(workspace.path).filter((path) => path !== 'run' && !before.includes(path))).toEqual([]);
}

describe('a bad model', () => {
  const MODEL = 'actor_rollout_ref.model.path';
  const model = async (name: string, changes: ModelChanges = {}): Promise<string> =>
    `${MODEL}=${await writeModel(file(name), changes)}`;
  const damaged = async (name: string, damage: (bytes: Buffer) => Buffer): Promise<string> => {
    const override = await model(name);
    const weights = join(file(name), 'model.safetensors');
    writeFileSync(weights, damage(readFileSync(weights)));
    return override;
  };

  it('has no directory', () => fails(1, [file('nowhere')], [`${MODEL}=${file('nowhere')}`]));

  it('has no config.json', () => fails(1, [file('empty'), 'config.json'], [`${MODEL}=${file('empty')}`]));

  it('is of an unsupported family', async () => {
    const override = await model('falcon', { config: { model_type: 'falcon' } });
    await fails(1, [file('falcon/config.json'), 'model_type', 'falcon', 'qwen2'], [override]);
  });

  it('has truncated safetensors', async () => {
    const override = await damaged('truncated', (bytes) => bytes.subarray(0, bytes.length - 100));
    await fails(1, [file('truncated/model.safetensors'), 'truncated', 'model.norm.weight'], [override]);
  });

  it('has safetensors that end within the header', async () => {
    const override = await damaged('beheaded', (bytes) => bytes.subarray(0, 100));
    await fails(1, [file('beheaded/model.safetensors'), 'truncated'], [override]);
  });

  it('has an empty safetensors file', async () => {
    const override = await damaged('hollow', () => Buffer.alloc(0));
    await fails(1, [file('hollow/model.safetensors'), 'truncated'], [override]);
  });

  it('has a corrupt safetensors header', async () => {
    const override = await damaged('corrupt', (bytes) => {
      bytes.write('}}}', 9);
      return bytes;
    });
    await fails(1, [file('corrupt/model.safetensors'), 'header', 'JSON'], [override]);
  });

  it('has a safetensors header of absurd length', async () => {
    const override = await damaged('absurd', (bytes) => {
      bytes.writeBigUInt64LE(2n ** 60n, 0);
      return bytes;
    });
    await fails(1, [file('absurd/model.safetensors'), String(2n ** 60n)], [override]);
  });

  it('lacks a tensor', async () => {
    const name = 'model.layers.1.mlp.up_proj.weight';
    const override = await model('lacking', { tensors: modelTensors().filter((t) => t.name !== name) });
    await fails(1, [file('lacking'), 'missing', `${name} [64, 32]`], [override]);
  });

  it('has a tensor too many', async () => {
    const extra = { name: 'model.layers.0.self_attn.q_proj.bias', shape: [32], data: new Float32Array(32) };
    const override = await model('extra', { tensors: [...modelTensors(), extra] });
    await fails(1, [file('extra'), 'not expected', extra.name], [override]);
  });

  it('has a tensor of another shape', async () => {
    const tensors = modelTensors();
    const norm = tensors.find(({ name }) => name === 'model.norm.weight')!;
    Object.assign(norm, { shape: [31], data: norm.data.slice(1) });
    const override = await model('misshapen', { tensors });
    await fails(1, [file('misshapen'), 'model.norm.weight', '[32]', '[31]'], [override]);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])('has %s in its weights', async (value) => {
    const tensors = modelTensors();
    const tensor = tensors.find(({ name }) => name === 'model.layers.0.self_attn.o_proj.weight')!;
    tensor.data[17] = value;
    const override = await model(`weights_${value}`, { tensors });
    await fails(1, [file(`weights_${value}/model.safetensors`), tensor.name, '1 of its 1024'], [override]);
  });

  it('has a smaller vocabulary than its tokenizer', async () => {
    const tensors = modelTensors();
    const size = VOCABULARY - 3;
    const embedding = tensors.find(({ name }) => name === 'model.embed_tokens.weight')!;
    Object.assign(embedding, { shape: [size, 32], data: embedding.data.slice(0, 32 * size) });
    const override = await model('vocabulary', { config: { vocab_size: size }, tensors });
    await fails(1, ['tokenizer', file('vocabulary'), `${VOCABULARY - 1}`, `vocab_size ${size}`], [override]);
  });

  it('has no tokenizer', () =>
    fails(1, [file('empty'), 'tokenizer.json'], [`actor_rollout_ref.model.tokenizer_path=${file('empty')}`]));

  it('has too few positions for the sequences asked for', () =>
    fails(
      2,
      ['data.max_response_length', '68', '64 positions', file('model')],
      ['data.max_response_length=60'],
    ));
});

describe('bad data', () => {
  const TRAIN = 'data.train_files';

  it('is a file that is not there', () => fails(1, [file('none.jsonl')], [`${TRAIN}=${file('none.jsonl')}`]));

  it('is a malformed JSONL line', async () => {
    const good = promptRows(2).map((row) => `${JSON.stringify(row)}\n`);
    writeFileSync(file('malformed.jsonl'), `${good.join('')}{"prompt": "1+\n`);
    await fails(1, [`${file('malformed.jsonl')}:3`, 'JSON'], [`${TRAIN}=${file('malformed.jsonl')}`]);
  });

  it('is a JSONL line without a column', async () => {
    const { reward_model: _, ...row } = promptRows(1)[0]!;
    writeJsonLines(file('lacking.jsonl'), [...promptRows(7), row]);
    await fails(1, [`${file('lacking.jsonl')}:8`, "'reward_model'"], [`${TRAIN}=${file('lacking.jsonl')}`]);
  });

  it('is a JSONL line whose prompt is a number', async () => {
    writeJsonLines(file('number.jsonl'), [...promptRows(7), { ...promptRows(1)[0], prompt: 12 }]);
    await fails(1, [`${file('number.jsonl')}:8`, 'prompt', '12'], [`${TRAIN}=${file('number.jsonl')}`]);
  });

  const parquet = (name: string, columns: Record<string, unknown[]>): string => {
    const columnData = Object.entries(columns).map(([column, data]) => ({ name: column, data }));
    parquetWriteFile({ filename: file(name), columnData });
    return `${TRAIN}=${file(name)}`;
  };

  it('is a parquet file without the prompt column', () => {
    const override = parquet('question.parquet', { question: ['1+1='], data_source: ['sums'] });
    return fails(1, [file('question.parquet'), "'prompt'", 'question, data_source'], [override]);
  });

  it('is a parquet file without the reward column', () => {
    const override = parquet('unrewarded.parquet', { prompt: ['1+1='], data_source: ['sums'] });
    return fails(1, [file('unrewarded.parquet'), "'reward_model'"], [override]);
  });

  it('is a parquet file in name only', async () => {
    writeFileSync(file('fake.parquet'), 'prompt,answer\n1+1=,2\n');
    await fails(1, [file('fake.parquet'), 'parquet'], [`${TRAIN}=${file('fake.parquet')}`]);
  });

  it('is an empty data set', async () => {
    writeFileSync(file('empty.jsonl'), '');
    await fails(1, [file('empty.jsonl'), 'empty'], [`${TRAIN}=${file('empty.jsonl')}`]);
  });

  it('is an empty data set for validation', async () => {
    writeFileSync(file('empty.jsonl'), '');
    await fails(1, [file('empty.jsonl'), 'empty'], [`data.val_files=${file('empty.jsonl')}`]);
  });

  it('is smaller than a batch', () =>
    fails(
      1,
      ['20', 'data.train_batch_size 32'],
      ['data.train_batch_size=32', 'actor_rollout_ref.actor.ppo_mini_batch_size=32'],
    ));

  it('has no prompt left after filtering', () =>
    fails(
      1,
      ['data.max_prompt_length 3', '20 prompts', '6 tokens'],
      ['data.filter_overlong_prompts=true', 'data.max_prompt_length=3'],
    ));

  it('has a prompt that is too long', () =>
    fails(
      1,
      [`${file('val.jsonl')}:1`, '6 tokens', 'data.max_prompt_length 3'],
      ['data.max_prompt_length=3'],
    ));

  it('is of a source without a reward function', () =>
    fails(2, ["'sums'", 'gsm8k'], ['reward.custom_reward_function.path=null']));
});

describe('bad data for supervised fine-tuning', () => {
  const sftFails = (says: string[], rows: unknown[]): Promise<void> => {
    const data = writeJsonLines(file('bad_examples.jsonl'), rows);
    return commandFails(1, [data, ...says], ['sft', file('sft.yaml'), `data.train_files=${data}`]);
  };

  it('has no response', () => sftFails([':3', "'response'"], [...exampleRows(2), { prompt: '1+1=' }]));

  it('has an example that is too long', () =>
    sftFails(
      [':3', 'data.max_length 16'],
      [...exampleRows(2), { prompt: '1+1=', response: '2'.repeat(20) }],
    ));

  it('is empty', () => sftFails(['empty'], []));
});

describe('a bad configuration', () => {
  const cases: readonly [what: string, override: string, ...says: string[]][] = [
    ['an unknown key', 'algorithm.adv_estimater=grpo', 'algorithm.adv_estimater', 'algorithm.adv_estimator'],
    ['an unknown section', 'actor_rollout_reff.model.path=x', 'actor_rollout_reff', 'actor_rollout_ref'],
    ['a word for a number', 'data.train_batch_size=many', 'data.train_batch_size', 'integer', '"many"'],
    ['a number for a switch', 'actor_rollout_ref.actor.use_kl_loss=1', 'use_kl_loss', 'true or false'],
    ['an unknown choice', 'actor_rollout_ref.actor.loss_agg_mode=mean', 'loss_agg_mode', 'token-mean'],
    ['an unknown estimator', 'algorithm.adv_estimator=grpoo', 'algorithm.adv_estimator', 'grpo'],
    ['an unknown loss', 'actor_rollout_ref.actor.policy_loss.loss_mode=vanila', 'loss_mode', 'vanilla'],
    ['an unknown KL', 'actor_rollout_ref.actor.kl_loss_type=k9', 'kl_loss_type', 'low_var_kl'],
    [
      'a mini-batch that does not divide',
      'actor_rollout_ref.actor.ppo_mini_batch_size=3',
      'ppo_mini_batch_size',
      '3',
      '4',
    ],
    [
      'sequences longer than the capacity',
      'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=15',
      'ppo_max_token_len_per_gpu',
      '15',
      '16',
    ],
    ['an unknown logger', 'trainer.logger=[pigeon]', 'trainer.logger', 'pigeon', 'console'],
    ['more machines than are known', 'trainer.nnodes=2', 'trainer.nnodes', 'how to reach other hosts'],
    ['a reward file that is not there', `reward.custom_reward_function.path=/nowhere.js`, '/nowhere.js'],
    ['no path to resume from', 'trainer.resume_mode=resume_path', 'trainer.resume_from_path'],
    ['an override without a value', 'trainer.seed', 'trainer.seed', 'key=value'],
  ];
  it.each(cases)('%s', (_, override, ...says) => fails(2, says, [override]));

  it('a file that is not YAML', async () => {
    writeFileSync(file('bad.yaml'), 'data: [1,\ntrainer: 2\n');
    await commandFails(2, [file('bad.yaml'), 'YAML'], ['train', file('bad.yaml')]);
  });

  it('a file that is not there', () => commandFails(2, [file('none.yaml')], ['train', file('none.yaml')]));

  it('a GPU that is not there', () => {
    const args = ['train', file('train.yaml'), 'trainer.device=cuda'];
    return commandFails(1, ['cuda', 'troupe doctor'], args, { CUDA_VISIBLE_DEVICES: '99' });
  });

  it('an unknown command', () => commandFails(2, ['train'], ['trian', file('train.yaml')]));

  it('an unknown option', () =>
    commandFails(2, ['frobnicate'], ['train', file('train.yaml'), '--frobnicate']));
});

describe('a directory that cannot be written', () => {
  it.each([
    ['trainer.default_local_dir', 'below a file', () => file('train.yaml/run')],
    ['trainer.default_local_dir', 'where nothing can be made', () => '/proc/run'],
    ['trainer.rollout_data_dir', 'below a file', () => file('train.yaml/rollouts')],
    ['trainer.validation_data_dir', 'where nothing can be made', () => '/proc/validations'],
  ])('%s %s', async (key, _, path) => {
    await fails(1, [key, path()], [`${key}=${path()}`]);
  });
});

it('shows the stack with --debug', async () => {
  const { code, stderr } = await runCommand([
    'train',
    file('train.yaml'),
    '--debug',
    `data.train_files=${file('none.jsonl')}`,
  ]);
  expect(code).toBe(1);
  expect(stderr).toMatch(/^\s+at /m);
});
