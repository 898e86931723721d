// What `troupe validate` finds in the data files of a run, where these are at hand.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { validationReport } from '../../../ts/cli/validate';
import { writeConfig } from '../config/write_config';

const directory = mkdtempSync(join(tmpdir(), 'troupe-validate-data-'));
let files = 0;
const written = (rows: readonly object[], name = `${files++}.jsonl`): string => {
  const file = join(directory, name);
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return file;
};
const ROW = { data_source: 'sums', prompt: '1+1=', reward_model: { ground_truth: '2' } };
const rows = (n: number, row: object = ROW): object[] => Array.from({ length: n }, () => row);

const TRAIN =
  'data: { train_batch_size: 8 }\nactor_rollout_ref: { model: { path: far/away }, actor: { ppo_mini_batch_size: 8 } }\n';
const SFT = 'data: { train_batch_size: 8, max_length: 16 }\nmodel: { path: far/away }\n';
const check = async (program: string, ...keys: string[]): Promise<string> =>
  (await validationReport(writeConfig(program), keys)).join('\n');

const good = written(rows(8));
const OTHER = { question: '1+1=', reward_model: { ground_truth: '2' }, data_source: 'sums' };

test('files that are good are passed over in silence', async () => {
  const text = await check(TRAIN, `data.train_files=${good}`, `data.val_files=${good}`);
  expect(text).toContain('is a valid configuration of troupe train');
  expect(text).not.toContain('no such files');
});

test('files that are not there are told, each once', async () => {
  const text = await check(
    TRAIN,
    'data.train_files=[far/a.parquet,far/a.parquet]',
    'data.val_files=far/b.parquet',
  );
  expect(text).toContain(
    '# not looked at, as there are no such files:\n#   far/a.parquet\n#   far/b.parquet\n',
  );
});

test('what a name holds of control characters stays within its comment, and is escaped', async () => {
  const text = await check(TRAIN, 'data.train_files=["far/a\nb\u001b[2J.parquet"]', `data.val_files=${good}`);
  expect(text).toContain('no such files:\n#   far/a\\nb\\x1b[2J.parquet\n');
  expect(text).not.toContain('\u001b');
});

test('modules and files of tools that are not there are told, too', async () => {
  const text = await check(
    TRAIN,
    `data.train_files=${good}`,
    'reward.custom_reward_function.path=far/reward.mjs',
    'actor_rollout_ref.rollout.agent.path=far/agent.mjs',
    'actor_rollout_ref.rollout.agent.tools=[far/tools.mjs]',
    'actor_rollout_ref.rollout.multi_turn.tool_config_path=far/tools.yaml',
  );
  expect(text).toContain(
    '# not looked at, as there are no such files:\n#   far/reward.mjs\n#   far/agent.mjs\n#   far/tools.mjs\n#   far/tools.yaml\n',
  );
});

test.each<[string, string, RegExp]>([
  [
    'data.train_files',
    written(rows(8, OTHER)),
    /:1: no column 'prompt'; the columns are question, reward_model.*: data\.prompt_key says which one it is$/,
  ],
  [
    'data.train_files',
    written([...rows(7), { ...ROW, prompt: 3 }]),
    /:8: expected a prompt string or a list/,
  ],
  [
    'data.train_files',
    written([...rows(7), { ...ROW, reward_model: null }]),
    /:8: expected reward_model to be/,
  ],
  [
    'data.train_files',
    written(rows(8, { prompt: 'a', reward_model: ROW.reward_model })),
    /no column 'data_source'; .*: data\.reward_fn_key says which one it is$/,
  ],
  ['data.train_files', written([...rows(7), { ...ROW, data_source: [] }]), /:8: expected data_source to be/],
  [
    'data.train_files',
    written(rows(7)),
    /7 usable samples, fewer than one batch \(data\.train_batch_size 8\)/,
  ],
  ['data.train_files', written([]), /jsonl: the data set is empty/],
  ['data.val_files', written([{ ...ROW, extra_info: 'x' }]), /:1: expected extra_info to be an object/],
  ['data.val_files', directory, /expected a \.parquet, \.jsonl or \.json file, got a directory/],
])('%s %s: what is wrong is told with its place', async (key, file, message) => {
  await expect(check(TRAIN, `data.train_files=${good}`, `${key}=${file}`)).rejects.toMatchObject({
    code: 'INVALID_DATA',
    message: expect.stringMatching(message),
  });
});

test('a limit on the rows counts', async () => {
  const limit = 'data.train_max_samples=7';
  await expect(check(TRAIN, `data.train_files=${good}`, limit)).rejects.toThrow(/7 usable samples/);
});

test('files that a class makes rows of are its own', async () => {
  const module = join(directory, 'data.py');
  writeFileSync(module, 'class Rows: pass\n');
  const own = [`data.custom_cls.path=${module}`, 'data.custom_cls.name=Rows'];
  await expect(check(TRAIN, `data.train_files=${written(rows(1, OTHER))}`, ...own)).resolves.toBeDefined();
});

test.each<[string[], object, RegExp | null]>([
  [
    ['data.messages_key=messages'],
    {
      messages: [
        { role: 'user', content: 'a' },
        { role: 'assistant', content: 'b' },
      ],
    },
    null,
  ],
  [['data.messages_key=messages'], { messages: 'a' }, /:1: expected a list of \{role, content\}, got "a"/],
  [
    ['data.messages_key=messages'],
    { prompt: 'a', response: 'b' },
    /:1: no column 'messages'; the columns are prompt, response: data\.messages_key says which one it is$/,
  ],
  [
    [],
    { messages: [] },
    /no column 'response'; the columns are messages: data\.response_key \(of conversations data\.messages_key\) says which/,
  ],
  [[], { prompt: 'a', response: 'b' }, null],
  [[], { prompt: 'a', response: 5 }, /:1: expected the response to be a string, got 5/],
  [[], { prompt: 5, response: 'b' }, /:1: expected a prompt string or a list/],
])('troupe sft, %j: %j', async (keys, row, message) => {
  const checked = check(SFT, `data.train_files=${written(rows(8, row))}`, ...keys);
  if (message === null) await expect(checked).resolves.toContain('valid configuration of troupe sft');
  else await expect(checked).rejects.toThrow(message);
});
