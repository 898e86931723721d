import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { type Agent, defineAgent } from '../../ts/agent/define';
import { commandAgent } from '../../ts/agent/loops/command';
import { agentTry } from '../../ts/cli/agent_try';
import { loadConfig } from '../../ts/config/config';
import { dataAddress } from '../../ts/data/images/data_address';
import type { RlSample } from '../../ts/data/rl_dataset';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { type Collected, collectBatch } from '../../ts/trainer/agent_rollout';
import { configuredAgents } from '../../ts/trainer/configured_agents';
import { Trainer } from '../../ts/trainer/trainer';
import { loadTokenizer } from '../../ts/trainer/training_data';
import { writeJsonLines } from '../helpers/e2e_workspace';
import { visionRows, writeVisionModel } from '../helpers/vision_directory';
import { IMAGE_TOKEN, IMAGES, readFixtures, VISION_MODEL } from '../helpers/vision_model';

// Agents whose prompts have images, as verl's geo3k with tools: what they do trains, in the bits in which it was sampled.

const directory = mkdtempSync(join(tmpdir(), 'troupe-agent-images-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const file = (name: string): string => join(directory, name);

/** Of a model of random weights: any of these tokens is a call of the tool. */
const CALLS = Array.from(
  { length: 12 },
  (_, i) => [48 + i, `<tool_call>{"name": "look", "arguments": {"at": ${i}}}</tool_call>`] as const,
);
const TEMPLATE =
  '{%- if tools -%}tools{%- endif -%}{%- for m in messages -%}{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}' +
  "{%- if p.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}" +
  '{%- for c in m.tool_calls or [] -%}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{%- endfor -%}' +
  "{%- if m.role == 'assistant' -%}<eos>{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}={%- endif -%}";

const rows = [['wide.png'], ['tall.jpg', 'clear.png']].map((images, i) => ({
  data_source: 'geo3k',
  prompt: [{ role: 'user', content: `see ${'<image>'.repeat(images.length)}?` }],
  images: images.map((name) => join(IMAGES, name)),
  reward_model: { style: 'rule', ground_truth: 'a' },
  extra_info: { index: i },
}));

beforeAll(() => {
  writeVisionModel(VISION_MODEL, file('model'), TEMPLATE);
  const definition = JSON.parse(readFileSync(file('model/tokenizer.json'), 'utf8'));
  for (const [id, content] of CALLS)
    definition.added_tokens.push({ ...definition.added_tokens[0], id, content, special: false });
  writeFileSync(file('model/tokenizer.json'), JSON.stringify(definition));
  writeJsonLines(file('train.jsonl'), rows);
  writeFileSync(file('grpo.yaml'), JSON.stringify(GRPO));
  writeFileSync(
    file('tools.mjs'),
    `import { defineTool } from ${JSON.stringify(resolve(__dirname, '../../dist/index.js'))};
     import { z } from ${JSON.stringify(require.resolve('zod'))};
     export default [defineTool({
       name: 'look', description: 'Looks closer',
       parameters: z.object({ at: z.number() }),
       run: ({ at }) => 'saw ' + at,
     })];`,
  );
});

const overrides = (...more: string[]): string[] => [
  `data.train_files=${file('train.jsonl')}`,
  `data.val_files=${file('train.jsonl')}`,
  'data.train_batch_size=2',
  'data.max_prompt_length=100',
  'data.max_response_length=48',
  `actor_rollout_ref.model.path=${file('model')}`,
  'actor_rollout_ref.actor.ppo_mini_batch_size=2',
  'actor_rollout_ref.rollout.n=4',
  `trainer.default_local_dir=${file('run')}`,
  ...more,
];

async function samples(): Promise<RlSample[]> {
  const dataset = await visionRows(file('train.jsonl'), loadTokenizer(config().actor_rollout_ref.model));
  return (await Promise.all([0, 1].map((i) => dataset.sample(i)))) as RlSample[];
}

const TOOL_AGENT = [
  'actor_rollout_ref.rollout.multi_turn.enable=true',
  `actor_rollout_ref.rollout.agent.tools=${file('tools.mjs')}`,
];

const config = (...more: string[]) => loadConfig(file('grpo.yaml'), overrides(...more));

/** Asks through another dialect, twice. */
const dialectAgent = (
  path: string,
  bodyOf: (task: { words: string; urls: string[] }, said: string | null) => object,
): Agent =>
  defineAgent({
    run: async ({ images = [], sample }, { endpoint }) => {
      const { anthropicBaseUrl: base } = await endpoint();
      const urls = await Promise.all(images.map(dataAddress));
      let said: string | null = null;
      for (let turn = 0; turn < 2; turn++) {
        const response = await fetch(base + path, {
          method: 'POST',
          body: JSON.stringify(bodyOf({ words: 'see', urls }, said)),
        });
        const answer = (await response.json()) as Record<
          string,
          { text: string; content: { text: string }[] }[]
        >;
        if (!response.ok) throw new Error(JSON.stringify(answer));
        said = (answer['content'] ?? answer['output']?.[0]?.content ?? [])[0]?.text ?? '';
      }
      return sample;
    },
  });

const AGENTS: Record<string, Agent | null> = {
  'the tool agent': null,
  'messages of its own': defineAgent({
    run: async ({ prompt, sample }, { chat }) => {
      const messages = [...(prompt as Extract<typeof prompt, readonly unknown[]>)];
      for (let turn = 0; turn < 2; turn++) {
        const reply = await chat.complete(messages, { maxNewTokens: 6 });
        messages.push(reply.message, { role: 'user', content: 'and' });
      }
      return sample;
    },
  }),
  'token ids': defineAgent({
    run: async ({ promptIds, sample }, { model }) => {
      const first = await model.generate(promptIds, { maxNewTokens: 6 });
      await model.generate([...promptIds, ...first.tokens, 5, 6], { maxNewTokens: 6 });
      // Of a question without images there are none.
      await model.generate([5, 6, 7], { maxNewTokens: 6 });
      return sample;
    },
  }),
  'the responses API': dialectAgent('/v1/responses', ({ words, urls }, said) => ({
    max_output_tokens: 6,
    input: [
      {
        role: 'user',
        content: [
          { type: 'input_text', text: words },
          ...urls.map((image_url) => ({ type: 'input_image', image_url, detail: 'auto' })),
        ],
      },
      ...(said === null
        ? []
        : [
            { role: 'assistant', content: said },
            { role: 'user', content: 'and' },
          ]),
    ],
  })),
  'the messages API': dialectAgent('/v1/messages', ({ words, urls }, said) => ({
    max_tokens: 6,
    messages: [
      {
        role: 'user',
        content: [
          { type: 'text', text: words },
          ...urls.map((url) => ({
            type: 'image',
            source: { type: 'base64', media_type: 'image/png', data: url.slice(url.indexOf(',') + 1) },
          })),
        ],
      },
      ...(said === null
        ? []
        : [
            { role: 'assistant', content: said },
            { role: 'user', content: 'and' },
          ]),
    ],
  })),
};

describe('what is sampled is what is trained', () => {
  let actor: Actor;
  beforeAll(async () => {
    actor = await Actor.create({
      model: file('model'),
      optim: { lr: 1e-3 },
      numThreads: 1,
      maxTokensPerMicroBatch: 1024,
    });
  });
  afterAll(() => actor.close());

  async function collected(agent: Agent | null, asked: RlSample[]): Promise<Collected> {
    const run = config(...(agent === null ? TOOL_AGENT : []));
    const parts = await configuredAgents(
      run,
      loadTokenizer(run.actor_rollout_ref.model),
      agent ? { agent } : {},
    );
    if (parts === null) throw new Error('expected an agent');
    try {
      return await collectBatch(parts, actor.rollout, asked, { n: 4, seed: 3, maxNewTokens: 24 }, 't', false);
    } finally {
      await parts.close();
    }
  }

  /** Log-probs of the trajectories, as the rollout recorded them and as they are computed; then an update. */
  async function learnt({ batch, trajectories }: Collected): Promise<void> {
    expect(trajectories?.map(({ error }) => error)).toEqual(trajectories?.map(() => null));
    const computed = await actor.computeLogProb(batch);
    const mask = batch.get('responseMask');
    const sampled = (column: Float32Array): number[] => Array.from(column).filter((_, t) => mask[t] === 1);
    expect(sampled(computed.logProbs)).toEqual(sampled(batch.get('rolloutLogProbs')));
    const advantages = Float32Array.from(mask, (trained, t) => trained * ((t % 5) - 2));
    const metrics = await actor.updatePolicy(batch.with({ oldLogProbs: computed.logProbs, advantages }), {});
    expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
  }

  test.each(Object.keys(AGENTS))('%s', async (name) => {
    const asked = await samples();
    const all = await collected(AGENTS[name] as Agent | null, asked);
    const { batch, trajectories } = all;
    const turns = trajectories?.map(({ calls }) => calls.length) ?? [];
    expect(Math.max(...turns)).toBeGreaterThan(1);
    // Turns of one conversation are one sequence, with the images of its prompt.
    const pictured = Array.from({ length: batch.size }, (_, i) => i).filter(
      (i) => batch.get('images')[i]?.length !== 0,
    );
    expect(pictured).toHaveLength(8);
    for (const [k, i] of pictured.entries()) {
      const images = await readFixtures(k < 4 ? ['wide.png'] : ['tall.jpg', 'clear.png']);
      expect(batch.get('images')[i]).toEqual(images);
      const tokens = images.reduce((sum, { height, width }) => sum + (height * width) / 64, 0);
      expect([...batch.prompt(i)].filter((id) => id === IMAGE_TOKEN)).toHaveLength(tokens);
      expect([...batch.response(i)]).not.toContain(IMAGE_TOKEN);
    }
    expect(batch.size).toBe(name === 'token ids' ? 16 : 8);
    await learnt(all);
  });

  test('a program, with the package openai', async () => {
    const program = resolve(__dirname, '../helpers/agents/openai_images.mjs');
    const all = await collected(commandAgent([process.execPath, program]), await samples());
    expect(all.trajectories?.map(({ calls }) => calls.length)).toEqual(new Array(8).fill(2));
    expect(all.batch.size).toBe(8);
    expect(all.batch.get('images').map((images) => images.length)).toEqual([1, 1, 1, 1, 2, 2, 2, 2]);
    // Those of the task, whoever has sent them again.
    expect(new Set(all.batch.get('images')).size).toBe(2);
    await learnt(all);
  });

  test('an image that comes later begins a sequence of its own', async () => {
    const [grey] = await readFixtures(['grey.png']);
    const agent = defineAgent({
      run: async ({ prompt, images = [], sample }, { chat }) => {
        const messages = [...(prompt as Extract<typeof prompt, readonly unknown[]>)];
        const reply = await chat.complete(messages, { maxNewTokens: 6 });
        messages.push(reply.message, { role: 'user', content: [{ type: 'image' }] });
        await chat.complete(messages, { maxNewTokens: 6, images: [...images, ...(grey ? [grey] : [])] });
        return sample;
      },
    });
    const all = await collected(agent, await samples());
    expect(all.batch.size).toBe(16);
    expect(all.batch.get('images').map((images) => images.length)).toEqual([
      ...[1, 2, 1, 2, 1, 2, 1, 2],
      ...[2, 3, 2, 3, 2, 3, 2, 3],
    ]);
    await learnt(all);
  });
});

const GRPO = {
  algorithm: { adv_estimator: 'grpo' },
  actor_rollout_ref: {
    actor: { ppo_max_token_len_per_gpu: 1024, use_kl_loss: true, optim: { lr: 0.001 } },
    rollout: {
      multi_turn: { format: 'auto', max_assistant_turns: 3 },
    },
  },
  trainer: {
    device: 'cpu',
    n_gpus_per_node: 1,
    num_threads: 1,
    logger: [],
    total_training_steps: 2,
    val_before_train: true,
    test_freq: 2,
    save_freq: -1,
  },
};

test('GRPO of the tool agent from the data set on', async () => {
  let asked = 0;
  const reward: RewardFunction = () => ({ score: asked++ % 3 });
  const { step } = await new Trainer(config(...TOOL_AGENT), { reward }).fit();
  expect(step).toBe(2);
  const lines = readFileSync(file('run/metrics.jsonl'), 'utf8').trim().split('\n');
  const steps = lines.map((line) => JSON.parse(line)).filter((line) => 'actor/grad_norm' in line);
  expect(steps).toHaveLength(2);
  for (const metrics of steps) {
    expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
    expect(metrics['num_turns/max']).toBeGreaterThanOrEqual(4);
    expect(metrics['agent/failed']).toBe(0);
  }
});

test('agent try shows a row with its images', async () => {
  let printed = '';
  const options = {
    config: file('grpo.yaml'),
    overrides: overrides(...TOOL_AGENT),
    task: JSON.stringify(rows[1]),
    temperature: 1,
    seed: 1,
    json: true,
  };
  const code = await agentTry(options, (text) => {
    printed += text;
  });
  const { calls, error } = JSON.parse(printed) as { calls: { promptIds: number[] }[]; error: unknown };
  expect([code, error]).toEqual([0, null]);
  const tokens = (await readFixtures(['tall.jpg', 'clear.png'])).map(
    ({ height, width }) => (height * width) / 64,
  );
  for (const { promptIds } of calls)
    expect(promptIds.filter((id) => id === IMAGE_TOKEN)).toHaveLength(
      (tokens[0] as number) + (tokens[1] as number),
    );
});
