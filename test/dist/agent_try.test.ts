// `troupe agent try` with a model of random weights and an agent that does what its task says.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { agentTry } from '../../ts/cli/agent_try';
import { modelTensors, writeModel } from '../helpers/e2e_workspace';

const directory = mkdtempSync(join(tmpdir(), 'troupe-try-'));
const AGENT = `exports.default = {
  run: async ({ extraInfo }, { model, note }) => {
    note({ role: 'user', content: extraInfo.says ?? 'nothing' });
    await model.generate([1, 2], { maxNewTokens: 2 });
    if (extraInfo.fails) throw new Error('no luck');
    return { reward: 0.5, answer: extraInfo.says ?? 'none' };
  },
};`;

beforeAll(async () => {
  const { writeByteTokenizer, VOCABULARY_SIZE, END } = await import(
    '../../bench/byte_tokenizer.mjs' as string
  );
  const data = Float32Array.from({ length: VOCABULARY_SIZE * 32 }, (_, i) => 0.3 * Math.sin(1 + i * i));
  await writeModel(join(directory, 'model'), {
    config: { vocab_size: VOCABULARY_SIZE, eos_token_id: END.id },
    tensors: [
      { name: 'model.embed_tokens.weight', shape: [VOCABULARY_SIZE, 32], data },
      ...modelTensors().slice(1),
    ],
  });
  writeByteTokenizer(join(directory, 'model'));
  writeFileSync(join(directory, 'agent.cjs'), AGENT);
  writeFileSync(
    join(directory, 'run.yaml'),
    `
data: { train_files: a.jsonl, val_files: a.jsonl, train_batch_size: 4, max_prompt_length: 16, max_response_length: 8 }
actor_rollout_ref:
  model: { path: ${join(directory, 'model')} }
  actor: { ppo_mini_batch_size: 2 }
  rollout: { n: 2, agent: { path: ${join(directory, 'agent.cjs')} } }
algorithm: { adv_estimator: grpo }
`,
  );
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function tried(row: object, json = false): Promise<{ code: number; shown: string }> {
  let shown = '';
  const options = { config: join(directory, 'run.yaml'), overrides: [], temperature: 0, seed: 0 };
  const task = JSON.stringify({ prompt: 'hi', ...row });
  const code = await agentTry({ ...options, task, json }, (text) => {
    shown += text;
  });
  return { code, shown };
}

test('one task, turn by turn', async () => {
  const { code, shown } = await tried({ extra_info: { says: 'a\nb' } });
  expect(code).toBe(0);
  expect(shown).toMatch(
    /^--- user\na\nb\n\nanswer: a\nb\nreward: 0\.5\n1 call of the model, 2 tokens, 0 uses of tools, [\d.]+ s\n$/,
  );
  const noted = await tried({ extra_info: { says: { a: [1] } } });
  expect([noted.code, noted.shown]).toEqual([
    1,
    expect.stringMatching(/^--- user\n\{"a":\[1\]\}\n\nfailed: /),
  ]);
  const failed = await tried({ extra_info: { fails: true } });
  expect([failed.code, failed.shown]).toEqual([
    1,
    expect.stringMatching(/\nfailed: no luck, at .*\/agent\.cjs:5\n/),
  ]);
});

test('what a model or a tool has said does not reach the terminal as commands; as JSON it is whole', async () => {
  const says = `x\u001b[2J\u0007${'long '.repeat(100)}\u202e`;
  const { shown } = await tried({ extra_info: { says } });
  for (const char of ['\u001b', '\u0007', '\u202e']) expect(shown).not.toContain(char);
  expect(shown).toContain(`x\\x1b[2J\\x07${'long '.repeat(100)}\\u202e`);
  const { turns, answer } = JSON.parse((await tried({ extra_info: { says } }, true)).shown);
  expect([turns[0].content, answer]).toEqual([says, says]);
});

test('rows as those of a file: extra_info may be null, and is an object', async () => {
  expect((await tried({ extra_info: null })).shown).toContain('answer: none');
  for (const wrong of [[1], 'x', 5])
    await expect(tried({ extra_info: wrong })).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringContaining('--task: expected extra_info to be an object'),
    });
  await expect(tried({ reward_model: 'x' })).rejects.toThrow(
    '--task: expected reward_model to be an object with ground_truth, got "x"',
  );
});
