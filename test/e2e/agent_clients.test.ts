// The packages that people write agents with, unmodified, over the real engine: each one's trajectories train, and all make the same tokens.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { Actor } from '../../ts/actor/actor';
import { collectTrajectories } from '../../ts/agent/collect';
import { type Agent, type AgentTask, defineAgent } from '../../ts/agent/define';
import { commandAgent } from '../../ts/agent/loops/command';
import { toolAgent } from '../../ts/agent/loops/tool_agent';
import { defineTool } from '../../ts/agent/tools/tool';
import { loadConfig, loadSftConfig } from '../../ts/config/config';
import { encodePrompt } from '../../ts/data/prompt';
import { configuredAgents } from '../../ts/trainer/configured_agents';
import { SftTrainer } from '../../ts/trainer/sft_trainer';
import { Trainer } from '../../ts/trainer/trainer';
import { loadTokenizer } from '../../ts/trainer/training_data';
import { writeJsonLines } from '../helpers/e2e_workspace';

const root = join(__dirname, '../..');
const script = (name: string): string => join(root, 'test/helpers/agents', name);
const PYTHON = process.env['TROUPE_TEST_OPENAI_PYTHON'] ?? 'python3';
const PYTHON_AGENT = [PYTHON, script('openai_client.py')];
const hasPython = spawnSync(PYTHON, ['-c', 'import openai']).status === 0;

/** [package, script, its further arguments] */
const CLIENTS: [string, string, string[]][] = [
  ['openai', 'openai.mjs', []],
  ['ai', 'ai_sdk.mjs', []],
  ['@openai/agents', 'openai_agents.mjs', ['responses']],
  ['@langchain/openai', 'langchain.mjs', []],
  ['@anthropic-ai/sdk', 'anthropic.mjs', []],
];
const present = CLIENTS.filter(([name]) => existsSync(join(root, 'node_modules', name)));
const SAMPLES = 4;
/** Of the warm start: enough to know how to ask. */
const STEPS = 60;

const OPEN = '<tool_call>{"name": "add", "arguments": {"a": ';
const TOKENIZER = {
  characters: '0123456789+=[]',
  words: [OPEN, ', "b": ', '}}</tool_call>'],
  // What a system says is left out: some clients have a say there, and the others none.
  template:
    "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% elif m.role != 'system' %}{{ m.content }}" +
    '{% for call in m.tool_calls or [] %}{{ \'<tool_call>{"name": "add", "arguments": {"a": \' }}{{ call.function.arguments.a }}' +
    "{{ ', \"b\": ' }}{{ call.function.arguments.b }}{{ '}}</tool_call>' }}{% endfor %}" +
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}",
};

const pair = (i: number): [number, number] => [1 + (i % 9), 1 + ((i * 5 + Math.floor(i / 9)) % 9)];
const question = (i: number): string => `${pair(i).join('+')}=`;

/** Three of four call the tool and repeat what it says, the others guess. */
function demonstration(i: number): unknown {
  const [a, b] = pair(i);
  const user = { role: 'user', content: question(i) };
  const say = (content: string) => ({ role: 'assistant', content });
  if (i % 4 === 3) return { messages: [user, say(String((i * 7) % 19))] };
  const told = { role: 'tool', content: String(a + b) };
  return { messages: [user, say(`${OPEN}${a}, "b": ${b}}}</tool_call>`), told, say(String(a + b))] };
}

const directory = mkdtempSync(join(tmpdir(), 'troupe-clients-'));
const file = (name: string): string => join(directory, name);
const model = file('sft/final_model');
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const OVERRIDES = [
  `data.train_files=${file('train.jsonl')}`,
  'data.val_files=null',
  'data.train_batch_size=1',
  'data.shuffle=false',
  'data.max_prompt_length=8',
  'data.max_response_length=48',
  `actor_rollout_ref.model.path=${model}`,
  'actor_rollout_ref.actor.ppo_mini_batch_size=1',
  'actor_rollout_ref.actor.use_kl_loss=false',
  // What is improbable may be no JSON at all.
  'actor_rollout_ref.rollout.top_p=0.9',
  `actor_rollout_ref.rollout.n=${SAMPLES}`,
  'trainer.val_before_train=false',
  'trainer.test_freq=-1',
  `trainer.total_training_steps=${present.length}`,
  `trainer.default_local_dir=${file('rl')}`,
  'trainer.logger=[]',
];

/** A model that knows how to ask and mostly does. */
beforeAll(async () => {
  const load = async (name: string) => await import(`../../examples/arithmetic/${name}.mjs`);
  const [{ writeInitialModel }, { writeTokenizer }, { Random }] = await Promise.all(
    ['initial_model', 'tokenizer', 'random'].map(load),
  );
  writeInitialModel(file('initial'), new Random(1), {
    vocabulary: TOKENIZER.characters.length + TOKENIZER.words.length + 2,
    positions: 64,
    theta: 100,
    writeTokenizer: (to: string) => writeTokenizer(to, { ...TOKENIZER, length: 64 }),
  });
  writeJsonLines(
    file('sft.jsonl'),
    Array.from({ length: 16 * STEPS }, (_, i) => demonstration(i)),
  );
  const rows = present.map(([name], i) => ({
    data_source: 'sums',
    prompt: [{ role: 'user', content: question(i) }],
    reward_model: { style: 'rule', ground_truth: String(pair(i)[0] + pair(i)[1]) },
    extra_info: { client: name },
  }));
  writeJsonLines(file('train.jsonl'), rows);
  const sft = loadSftConfig(join(root, 'examples/agent/sft.yaml'), [
    `data.train_files=${file('sft.jsonl')}`,
    'data.train_batch_size=16',
    'optim.lr_warmup_steps=5',
    `model.path=${file('initial')}`,
    `trainer.default_local_dir=${file('sft')}`,
    'trainer.logger=[]',
  ]);
  await new SftTrainer(sft).fit();
}, 300_000);

const linesOf = (name: string): Record<string, number>[] =>
  readFileSync(file(join('rl', name)), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

test('an update from the trajectories of each client alone, streaming and not', async () => {
  const agent: Agent = defineAgent({
    run: async (task, context) => {
      const [, name, more] = present.find(
        ([one]) => one === task.extraInfo['client'],
      ) as (typeof CLIENTS)[number];
      const mode = task.sample % 2 === 0 ? 'whole' : 'stream';
      const program = commandAgent([process.execPath, script(name), mode, ...more]);
      await program.run(task, context);
      // Some are better than others, whatever they say: each group has advantages.
      return task.sample;
    },
  });
  const config = loadConfig(join(root, 'examples/agent/grpo.yaml'), OVERRIDES);
  const { step } = await new Trainer(config, { agent }).fit();
  expect(step).toBe(present.length);
  const steps = linesOf('metrics.jsonl').filter((line) => 'actor/grad_norm' in line);
  expect(steps).toHaveLength(present.length);
  for (const metrics of steps) {
    expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
    // At least one of the group has called the tool and heard of it.
    expect(metrics['num_turns/max']).toBeGreaterThanOrEqual(4);
    expect(metrics['agent/failed']).toBeLessThan(SAMPLES / 2);
  }
});

test('the same agent, built in, with the AI SDK and in Python: the same token ids for the same seeds', async () => {
  const config = loadConfig(join(root, 'examples/agent/grpo.yaml'), OVERRIDES);
  const tokenizer = loadTokenizer(config.actor_rollout_ref.model);
  const add = defineTool({
    name: 'add',
    description: 'Adds two numbers',
    parameters: z.object({ a: z.number(), b: z.number() }),
    run: ({ a, b }) => String(a + b),
  });
  const limits = { maxAssistantTurns: 5, maxUserTurns: null, maxParallelCalls: 1, maxResponseLength: 64 };
  const agents = [
    toolAgent(limits),
    ...(existsSync(join(root, 'node_modules/ai'))
      ? [commandAgent([process.execPath, script('ai_sdk.mjs')])]
      : []),
    ...(hasPython ? [commandAgent(PYTHON_AGENT)] : []),
  ];
  const tasks = Array.from({ length: 8 }, (_, i): AgentTask => {
    const prompt = [{ role: 'user', content: question(i) }];
    return {
      prompt,
      promptIds: encodePrompt(prompt, tokenizer, 'test', {}),
      dataSource: 'sums',
      groundTruth: null,
      extraInfo: {},
      sample: 0,
      validation: false,
    };
  });
  const actor = await Actor.create({ model, optim: null, numThreads: 1 });
  const made: unknown[] = [];
  try {
    for (const agent of agents) {
      const parts = await configuredAgents(config, tokenizer, { agent, tools: [add] });
      const trajectories = await collectTrajectories(agent, tasks, {
        ...(parts as NonNullable<typeof parts>).options,
        tokenizer,
        chat: parts?.chat ?? null,
        tools: [add],
        engine: actor.rollout,
        maxTokens: 64,
        sampling: { maxNewTokens: 64, topP: 0.9 },
        seed: 1,
        concurrency: 4,
      });
      await parts?.close();
      made.push(
        trajectories.map(({ calls }) => calls.map(({ promptIds, tokens }) => [[...promptIds], [...tokens]])),
      );
    }
  } finally {
    await actor.close();
  }
  expect((made[0] as unknown[][]).some((calls) => calls.length > 1)).toBe(true);
  for (const other of made.slice(1)) expect(other).toEqual(made[0]);
});
