// The packages that people write agents with, unmodified, each in a process of its own, against the endpoint of sessions.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { SessionServer } from '../../../ts/agent/endpoint/session_server';
import { commandAgent } from '../../../ts/agent/loops/command';
import { runAgent } from '../../../ts/agent/run_agent';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import { trajectoryBatch } from '../../../ts/agent/trajectory/trajectory_batch';
import { chatTokenizer, served, speaking } from './chat_world';

const root = join(__dirname, '../../..');
const agents = join(root, 'test/helpers/agents');
const tokenizer = chatTokenizer();
const sessions = new SessionServer();
afterAll(() => sessions.close());

const speak = (prompt: string): string => {
  const told = /<tool_response>\n(.*)\n<\/tool_response><\|im_end\|>\n<\|im_start\|>assistant\n$/.exec(
    prompt,
  );
  return told
    ? `It is ${told[1]}.`
    : 'I add.\n<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>';
};

const play = async (command: string[]) =>
  await runAgent(
    commandAgent(command),
    {
      prompt: [{ role: 'user', content: 'What is 17 + 25?' }],
      promptIds: tokenizer.encode('x'),
      dataSource: 'test',
      groundTruth: '42',
      extraInfo: {},
      sample: 0,
      validation: false,
    },
    {
      engine: speaking(tokenizer, speak),
      tokenizer,
      chat: { served: served(tokenizer), history: 'append', sessions, variables: {} },
      sampling: { maxNewTokens: 200 },
      tools: [],
      toolOptions: { timeout: 1, maxResponseLength: 100, truncateSide: 'middle' },
      timeout: 60,
      retries: 0,
      seed: '1',
    },
  );

const expectTwoTurns = async (command: string[]): Promise<void> => {
  const trajectory = await play(command);
  expect(trajectory).toMatchObject({ error: null, answer: 'It is 42.' });
  expect(trajectory.calls).toHaveLength(2);
  // One sequence of which both turns are trained: what can be learnt from.
  expect(joinCalls(trajectory.calls)).toHaveLength(1);
  const batch = trajectoryBatch([{ promptIds: [1], trajectory }]);
  const made = trajectory.calls.reduce((sum, { tokens }) => sum + tokens.length, 0);
  expect(batch.get('responseMask').reduce((sum, bit) => sum + bit, 0)).toBe(made);
};

const CLIENTS = [
  ['openai', 'openai', []],
  ['ai', 'ai_sdk', []],
  ['@openai/agents', 'openai_agents', ['responses']],
  ['@openai/agents', 'openai_agents', ['chat_completions']],
  ['@langchain/openai', 'langchain', []],
  ['@anthropic-ai/sdk', 'anthropic', []],
] as const;

describe.each(CLIENTS)('%s (%s.mjs %j)', (name, script, more) => {
  const there = existsSync(join(root, 'node_modules', name));
  // Skipped visibly where the package is not installed.
  (there ? test.each : test.skip.each)(['whole', 'stream'])('%s', (mode) =>
    expectTwoTurns([process.execPath, join(agents, `${script}.mjs`), mode, ...more]),
  );
});

const PYTHON = process.env['TROUPE_TEST_OPENAI_PYTHON'] ?? 'python3';
const hasPython = spawnSync(PYTHON, ['-c', 'import openai']).status === 0;
(hasPython ? test : test.skip)('openai in Python', () =>
  expectTwoTurns([PYTHON, join(agents, 'openai_client.py')]),
);
