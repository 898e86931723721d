// Models that read the policy's token ids as they are, and tokenizers beside them: found by `troupe validate`, `troupe plan` and a run alike.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { validate } from '../../../ts/cli/validate';
import { loadConfig } from '../../../ts/config/config';
import { configuredPlan } from '../../../ts/planner/from_config';
import { loadTrainingData } from '../../../ts/trainer/training_data';
import { SHARDED_MODEL } from '../../helpers/sharded';
import { writeConfig } from '../config/write_config';
import { tokenizerDirectory } from '../data/fake_tokenizer';

interface Definition {
  added_tokens: { id: number; content: string }[];
  model: { vocab: Record<string, number> };
}

const plain = tokenizerDirectory();
const made: string[] = [plain];
afterAll(() => {
  for (const directory of made) rmSync(directory, { recursive: true });
});

/** A small model with the tokenizer that `change` makes of the policy's; null: none. */
function model(change: ((definition: Definition) => void) | null, config: object = {}): string {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-tokens-'));
  made.push(directory);
  const shape = JSON.parse(readFileSync(join(SHARDED_MODEL, 'config.json'), 'utf8'));
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...shape, ...config }));
  if (change === null) return directory;
  const definition = JSON.parse(readFileSync(join(plain, 'tokenizer.json'), 'utf8')) as Definition;
  change(definition);
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
  return directory;
}

const same = model(() => undefined);
// What the data are read with looks at the policy's weights.
cpSync(SHARDED_MODEL, same, { recursive: true });
const policy = [
  `actor_rollout_ref.model.path=${same}`,
  'data.max_prompt_length=8',
  'data.max_response_length=8',
];
/** Vocabularies of one size, in another order. */
const others = model(({ model: { vocab } }) => {
  [vocab['b'], vocab['c']] = [vocab['c'] as number, vocab['b'] as number];
});
const GRPO = 'algorithm.adv_estimator=grpo';
const critic = (directory: string): string[] => [`critic.model.path=${directory}`];
const REWARD = 'reward.reward_model';
const reward = (directory: string, ...keys: string[]): string[] => [
  GRPO,
  `${REWARD}.enable=true`,
  `${REWARD}.model_path=${directory}`,
  ...keys.map((key) => `${REWARD}.${key}`),
];
const TEACHERS = 'distillation.teacher_models';
const teacher = (directory: string): string[] => [
  GRPO,
  'distillation.enabled=true',
  `${TEACHERS}.teacher_model.model_path=${directory}`,
];

/** Whether it is refused, by each of the three; plans end where memory is asked for. */
async function refusals(keys: readonly string[]): Promise<string[]> {
  const overrides = [...policy, ...keys];
  const file = writeConfig();
  const write = jest.spyOn(process.stdout, 'write').mockImplementation(() => true);
  const attempts: (() => Promise<unknown>)[] = [
    () => validate(file, overrides),
    () => configuredPlan({ file, overrides, gpus: null, memory: null }, undefined as never),
    // Of whose data there are none.
    () => loadTrainingData(loadConfig(file, [...overrides, 'data.train_files=none.jsonl'])),
  ];
  const found: string[] = [];
  for (const attempt of attempts) await attempt().catch((error: Error) => found.push(error.message));
  write.mockRestore();
  return found.filter((message) => !message.includes('none.jsonl'));
}

const IDS = 'another tokenizer than the policy .*: "b" has id 5 there, and the';
test.each<[string, string[], RegExp]>([
  [
    'a critic',
    critic(others),
    new RegExp(`^critic\\.model\\.path: the critic in .* has ${IDS} critic's has id 6: `),
  ],
  [
    'a reward model',
    reward(others),
    new RegExp(`^reward.*input_tokenizer: the reward model in .* has ${IDS} reward model's has id 6\\. Set `),
  ],
  [
    'a reward model that is given what is cut',
    reward(others, 'truncation=left'),
    /^reward\.reward_model\.input_tokenizer: /,
  ],
  [
    'a reward model whose tokenizer is elsewhere',
    reward(same, `tokenizer_path=${others}`),
    /^reward\.reward_model\.input_tokenizer: /,
  ],
  [
    'a reward model without a token',
    reward(model(({ model: { vocab } }) => delete vocab['z'])),
    /"z" has id 29 there, and the reward model's does not know it/,
  ],
  [
    'a teacher',
    teacher(others),
    new RegExp(`teacher_model\\.model_path: the teacher in .* has ${IDS} teacher's has id 6: `),
  ],
  [
    'a teacher with another size and no tokenizer',
    teacher(model(null, { vocab_size: 320 })),
    /the teacher in .* has a vocabulary of 320 tokens, and the policy one of \d+: expected the same/,
  ],
])('%s with other tokens is refused', async (_, keys, message) => {
  const found = await refusals(keys);
  expect(found).toHaveLength(3);
  for (const line of found) expect(line).toMatch(message);
});

test.each<[string, string[]]>([
  ['a critic with the tokens of the policy', critic(same)],
  ['a critic without a tokenizer', critic(model(null))],
  ['a critic whose tokenizer nobody can read', critic(brokenTokenizer())],
  ['a critic without some tokens', critic(model(({ model: { vocab } }) => delete vocab['z']))],
  [
    'a critic with further tokens and with other names',
    critic(
      model(({ model: { vocab }, added_tokens: added }) => {
        delete vocab['z'];
        Object.assign(vocab, { '<end>': 29 });
        added.push({ id: 49, content: '<call>' });
      }),
    ),
  ],
  ['a reward model with a tokenizer of its own', reward(others, `input_tokenizer=${same}`)],
  [
    'a teacher with the tokens of the policy, and a larger head',
    teacher(model(() => undefined, { vocab_size: 320 })),
  ],
])('%s is taken', async (_, keys) => {
  expect(await refusals(keys)).toEqual([]);
});

function brokenTokenizer(): string {
  const directory = model(null);
  writeFileSync(join(directory, 'tokenizer.json'), '{');
  return directory;
}
