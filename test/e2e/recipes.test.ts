import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { runCommand } from '../helpers/e2e_process';
import { modelTensors, Workspace, writeJsonLines, writeModel } from '../helpers/e2e_workspace';
import { readLines } from '../helpers/observed_run';

// Every recipe of examples/recipes trains for two steps as it stands, but for model, data, reward and sizes: these are tiny here.

const ROOT = resolve(__dirname, '../..');
const RECIPES = readdirSync(join(ROOT, 'examples/recipes')).filter((name) => name.endsWith('.yaml'));

/** Problems in the form of the data set. */
const PROBLEMS = Array.from({ length: 8 }, (_, i) => ({
  question: `Anna has ${i + 2} apples and buys ${1000 * i}. How many are there?`,
  answer: `There are ${i + 2} + ${1000 * i} = <<${i + 2}+${1000 * i}=${1001 * i + 2}>>${1001 * i + 2}.\n#### ${(1001 * i + 2).toLocaleString('en')}`,
}));

/** Differs between the answers even of this model, so that no algorithm runs out of prompts. */
const REWARD = `exports.compute_score = ({ response }) => {
  const score = [...response].filter((c) => c < 'N').length / 16;
  return { score, acc: score };
};`;

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  const { writeByteTokenizer, VOCABULARY_SIZE, END } = await load('../../bench/byte_tokenizer.mjs');
  const embedding = { name: 'model.embed_tokens.weight', shape: [VOCABULARY_SIZE, 32] };
  const data = Float32Array.from({ length: VOCABULARY_SIZE * 32 }, (_, i) => 0.3 * Math.sin(1 + i * i));
  await writeModel(workspace.file('small'), {
    config: { vocab_size: VOCABULARY_SIZE, max_position_embeddings: 2048, eos_token_id: END.id },
    tensors: [{ ...embedding, data }, ...modelTensors().slice(1)],
  });
  writeByteTokenizer(workspace.file('small'));
  writeFileSync(workspace.file('score.cjs'), REWARD);
  const { status, stderr } = prepare(PROBLEMS, 'gsm8k');
  expect([status, stderr]).toEqual([0, '']);
});
afterAll(() => workspace.remove());

const load = (module: string) => import(module); // untyped

/** Runs examples/gsm8k/prepare.mjs on these rows. */
function prepare(rows: readonly unknown[], out: string) {
  const source = writeJsonLines(workspace.file('source.jsonl'), rows);
  const program = join(ROOT, 'examples/gsm8k/prepare.mjs');
  const args = [program, '--train', source, '--test', source, '--out', workspace.file(out)];
  return spawnSync(process.execPath, args, { encoding: 'utf8' });
}

const small = (name: string): string[] => [
  'data.train_batch_size=4',
  `trainer.default_local_dir=${workspace.file(`run_${name}`)}`,
  'trainer.total_training_steps=2',
  'trainer.save_freq=-1',
  'trainer.num_threads=1',
  'trainer.logger=[]',
];

function trainOverrides(name: string, text: string): string[] {
  return [
    ...small(name),
    ...(text.includes('gen_batch_size') ? ['data.gen_batch_size=8'] : []),
    `data.train_files=${workspace.file('gsm8k/train.jsonl')}`,
    `data.val_files=${workspace.file('gsm8k/test.jsonl')}`,
    'data.val_max_samples=2',
    'data.max_prompt_length=256',
    'data.max_response_length=16',
    `reward.custom_reward_function.path=${workspace.file('score.cjs')}`,
    ...(text.includes('overlong_buffer_cfg') ? ['reward.reward_kwargs.overlong_buffer_cfg.len=8'] : []),
    `actor_rollout_ref.model.path=${workspace.file('small')}`,
    'actor_rollout_ref.actor.ppo_mini_batch_size=2',
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024',
    ...(text.includes('critic:')
      ? [`critic.model.path=${workspace.file('small')}`, 'critic.ppo_max_token_len_per_gpu=1024']
      : []),
    ...(text.includes('teacher_model:')
      ? [`distillation.teacher_models.teacher_model.model_path=${workspace.file('small')}`]
      : []),
    'trainer.test_freq=2',
    'trainer.val_before_train=false',
  ];
}

const sftOverrides = (name: string): string[] => [
  ...small(name),
  `data.train_files=${workspace.file('gsm8k/sft.jsonl')}`,
  `model.path=${workspace.file('small')}`,
];

it('there is a recipe for each algorithm that the page of recipes names', () => {
  const page = readFileSync(join(ROOT, 'docs/recipes.md'), 'utf8');
  for (const name of RECIPES) expect(page).toContain(`(../examples/recipes/${name})`);
});

it.each(RECIPES)('%s trains', async (recipe) => {
  const file = join(ROOT, 'examples/recipes', recipe);
  const sft = recipe === 'sft.yaml';
  const overrides = sft ? sftOverrides(recipe) : trainOverrides(recipe, readFileSync(file, 'utf8'));
  const { code, stderr } = await runCommand([sft ? 'sft' : 'train', file, ...overrides]);
  expect([code, code === 0 ? '' : stderr]).toEqual([0, '']);
  const losses = readLines(workspace.file(`run_${recipe}/metrics.jsonl`))
    .map((line) => line[sft ? 'train/loss' : 'actor/pg_loss'])
    .filter((loss) => loss !== undefined);
  expect(losses).toHaveLength(2);
  for (const loss of losses) expect(loss).toEqual(expect.any(Number));
});

it('the number of a solution is read without its commas, and a solution without one is refused', () => {
  const last = readLines(workspace.file('gsm8k/train.jsonl'))[7];
  expect(last).toMatchObject({ data_source: 'openai/gsm8k', reward_model: { ground_truth: '7009' } });
  const { status, stderr } = prepare([...PROBLEMS, { question: 'q', answer: 'none' }], 'refused');
  expect([status, stderr]).toEqual([1, expect.stringContaining('train row 8')]);
  expect(existsSync(workspace.file('refused/train.jsonl'))).toBe(false);
});
