// One task for an agent over a scripted engine, with sessions: what tests of the endpoint have in common.
import { z } from 'zod';
import { collectTrajectories } from '../../../ts/agent/collect';
import type { Agent, AgentTask } from '../../../ts/agent/define';
import { SessionServer } from '../../../ts/agent/endpoint/session_server';
import { defineTool, type Tool } from '../../../ts/agent/tools/tool';
import type { Trajectory } from '../../../ts/agent/trajectory/trajectory';
import { chatTokenizer, served, speaking } from './chat_world';

export const tokenizer = chatTokenizer();
export const sessions = new SessionServer();

export const add = defineTool({
  name: 'add',
  description: 'Adds two numbers',
  parameters: z.object({ a: z.number(), b: z.number() }),
  run: ({ a, b }) => a + b,
});

/** Adds 17 and 25 by a tool, then says what it was told. */
export const speak = (prompt: string): string => {
  const told = /<tool_response>\n(.*)\n<\/tool_response><\|im_end\|>\n<\|im_start\|>assistant\n$/.exec(
    prompt,
  );
  return told
    ? `It is ${told[1]}.`
    : '<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>';
};

export const task = (extraInfo: Record<string, unknown> = {}): AgentTask => ({
  prompt: [{ role: 'user', content: 'What is 17 + 25?' }],
  promptIds: tokenizer.encode('x'),
  dataSource: 'test',
  groundTruth: '42',
  extraInfo,
  sample: 0,
  validation: false,
});

export const run = async (
  agent: Agent,
  {
    tools = [add] as Tool[],
    say = speak,
    engine = speaking(tokenizer, say),
    grammars = null as 'engine' | null,
    one = task(),
    timeout = 20,
    maxTokens = 4000,
    maxNewTokens = 200,
    server = sessions,
  } = {},
): Promise<Trajectory> => {
  const [trajectory] = await collectTrajectories(agent, [one], {
    engine,
    tokenizer,
    chat: { served: { ...served(tokenizer), grammars }, history: 'append', sessions: server, variables: {} },
    sampling: { maxNewTokens },
    tools,
    toolOptions: { timeout: 1, maxResponseLength: 100, truncateSide: 'middle' },
    timeout,
    retries: 0,
    seed: 1,
    concurrency: 4,
    onError: 'zero',
    maxTokens,
  });
  return trajectory as Trajectory;
};

export const limits = {
  maxAssistantTurns: null,
  maxUserTurns: null,
  maxParallelCalls: 1,
  maxResponseLength: 1500,
};
export const words = ({ calls }: Trajectory): string[] =>
  calls.map(({ tokens }) => tokenizer.decode(tokens, { skipSpecialTokens: true }));

export type Block = Record<string, unknown>;

export const post = async (url: string, key: string, body: unknown): Promise<Response> =>
  await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}`, 'x-api-key': key },
    body: JSON.stringify(body),
  });

export const schema = { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } } };
