// The packages that people write agents with, unmodified, each in a process of its own, against the endpoint of sessions.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { Agent } from '../../../ts/agent/define';
import { SessionServer } from '../../../ts/agent/endpoint/session_server';
import { commandAgent } from '../../../ts/agent/loops/command';
import { toolAgent } from '../../../ts/agent/loops/tool_agent';
import { runAgent } from '../../../ts/agent/run_agent';
import { defineTool, type Tool } from '../../../ts/agent/tools/tool';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import { trajectoryBatch } from '../../../ts/agent/trajectory/trajectory_batch';
import type { Tokenizer } from '../../../ts/data/tokenizer';
import type { RolloutEngine } from '../../../ts/rollout/engine';
import { ScriptedEngine } from '../../helpers/scripted_engine';
import { bytewise, chatTokenizer, served, speaking, TEMPLATE } from './chat_world';

const root = join(__dirname, '../../..');
const agentPrograms = join(root, 'test/helpers/agents');
const PYTHON = process.env['TROUPE_TEST_OPENAI_PYTHON'] ?? 'python3';
const hasPython = spawnSync(PYTHON, ['-c', 'import openai']).status === 0;
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

interface World {
  engine?: RolloutEngine;
  own?: Tokenizer;
  tools?: Tool[];
  seed?: string;
}

const play = async (agent: Agent, { engine, own = tokenizer, tools = [], seed = '1' }: World = {}) =>
  await runAgent(
    agent,
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
      engine: engine ?? speaking(own, speak),
      tokenizer: own,
      chat: { served: served(own), history: 'append', sessions, variables: {} },
      sampling: { maxNewTokens: 200 },
      tools,
      toolOptions: { timeout: 1, maxResponseLength: 100, truncateSide: 'middle' },
      timeout: 60,
      retries: 0,
      seed,
    },
  );

const expectTwoTurns = async (command: string[]): Promise<void> => {
  const trajectory = await play(commandAgent(command));
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
    expectTwoTurns([process.execPath, join(agentPrograms, `${script}.mjs`), mode, ...more]),
  );
});

/** Asks for a sum or not, of numbers that the seed decides on: a model in which everything is chance. */
const chancy = (own: Tokenizer): RolloutEngine =>
  new ScriptedEngine(({ promptIds, sampling }) => {
    const digest = createHash('sha256').update(`${sampling.seed}:${promptIds.length}`).digest();
    const [kind, a, b] = [digest[0] as number, digest[1], digest[2]];
    const call = `<tool_call>{"name": "add", "arguments": {"a": ${a}, "b": ${b}}}</tool_call>`;
    const told = own.decode(promptIds, { skipSpecialTokens: true }).slice(-40);
    return { tokens: bytewise(kind < 160 ? call : `Then it is ${digest[3]}, I was told ${told.length}.`) };
  });

test('the same agent, built in and with the AI SDK, makes the same tokens from the same seeds', async () => {
  // The clients describe the tool each in their own words: this template shows none of them.
  const own = chatTokenizer(TEMPLATE.replace(/\{%- if tools %\}[\s\S]*?\{% endif -%\}/, ''));
  const add = defineTool({
    name: 'add',
    description: 'Adds two numbers',
    parameters: z.object({ a: z.number(), b: z.number() }),
    run: ({ a, b }) => String(a + b),
  });
  const agents = [
    toolAgent({ maxAssistantTurns: 5, maxUserTurns: null, maxParallelCalls: 1, maxResponseLength: 2000 }),
    commandAgent([process.execPath, join(agentPrograms, 'ai_sdk.mjs')]),
    ...(hasPython ? [commandAgent([PYTHON, join(agentPrograms, 'openai_client.py')])] : []),
  ];
  for (const seed of ['1', '2', '3']) {
    const made: string[][] = [];
    for (const agent of agents) {
      const { calls, error } = await play(agent, { engine: chancy(own), own, tools: [add], seed });
      expect(error).toBeNull();
      made.push(calls.map(({ promptIds, tokens }) => `${[...promptIds]} > ${[...tokens]}`).slice(0, 5));
    }
    for (const other of made.slice(1)) expect(other).toEqual(made[0]);
  }
});

(hasPython ? test : test.skip)('openai in Python', () =>
  expectTwoTurns([PYTHON, join(agentPrograms, 'openai_client.py')]),
);
