// Whether the same agent makes the same tokens however it is written: node examples/agent/three_ways.mjs MODEL [--tasks N] [--python PYTHON]
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Actor } from '../../dist/actor/actor.js';
import { collectTrajectories } from '../../dist/agent/collect.js';
import { loadConfig } from '../../dist/config/config.js';
import { encodePrompt } from '../../dist/data/prompt.js';
import { configuredAgents } from '../../dist/trainer/configured_agents.js';
import { loadTokenizer } from '../../dist/trainer/training_data.js';

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '..', '..');
/** Of what was given. */
function wrong(message) {
  console.error(`three_ways: ${message}`);
  process.exit(2);
}

function readArguments() {
  const options = {
    tasks: { type: 'string', default: '32' },
    python: { type: 'string', default: 'python3' },
    seed: { type: 'string', default: '1' },
  };
  try {
    return parseArgs({ options, allowPositionals: true });
  } catch (error) {
    return wrong(error.message);
  }
}

const { values, positionals } = readArguments();
const [model] = positionals;

for (const name of ['tasks', 'seed'])
  if (!/^\d{1,15}$/.test(values[name])) wrong(`--${name}: expected a whole number, got '${values[name]}'`);
if (model === undefined) wrong('expected the directory of a model, such as runs/agent/rl/final_model');
const data = join(model, '..', '..', 'data', 'val.jsonl');
if (!existsSync(data))
  wrong(
    `expected a model of npm start -- --agent, with tasks in ${data}, where there are none: got ${model}`,
  );
if (spawnSync(values.python, ['-c', 'import openai'], { stdio: 'ignore' }).status !== 0)
  wrong(`--python: expected a Python that has the package openai, got ${values.python}`);
const rows = readFileSync(data, 'utf8')
  .split('\n')
  .filter((line) => line !== '')
  .slice(0, Number(values.tasks))
  .map((line) => JSON.parse(line));

const WAYS = {
  'built in': [],
  'AI SDK': ['agent.command=[node,examples/agent/ai_sdk.mjs]'],
  Python: [`agent.command=[${values.python},examples/agent/openai_client.py]`],
};

process.chdir(ROOT);
const actor = await Actor.create({ model: resolve(model), optim: null });
const made = {};
for (const [name, overrides] of Object.entries(WAYS)) {
  // Limits that no trajectory reaches: programs know nothing of them.
  const config = loadConfig(join(ROOT, 'examples/agent/grpo.yaml'), [
    `actor_rollout_ref.model.path=${resolve(model)}`,
    'data.max_response_length=200',
    ...overrides.map((one) => `actor_rollout_ref.rollout.${one}`),
  ]);
  const tokenizer = loadTokenizer(config.actor_rollout_ref.model);
  const { agent, chat, tools, options, close } = await configuredAgents(config, tokenizer);
  const tasks = rows.map(({ prompt, data_source, reward_model, extra_info }) => ({
    prompt,
    promptIds: encodePrompt(prompt, tokenizer, 'val', {}),
    dataSource: data_source,
    groundTruth: reward_model.ground_truth,
    extraInfo: extra_info,
    sample: 0,
    validation: false,
  }));
  const trajectories = await collectTrajectories(agent, tasks, {
    ...options,
    engine: actor.rollout,
    tokenizer,
    chat,
    tools,
    sampling: { maxNewTokens: 200, temperature: 1 },
    seed: Number(values.seed),
    concurrency: name === 'built in' ? 64 : 4,
    onError: 'zero',
  });
  await close();
  made[name] = trajectories.map(({ calls }) =>
    calls.map(({ promptIds, tokens }) => [[...promptIds], [...tokens]]),
  );
  const errors = trajectories.flatMap(({ error }) => (error === null ? [] : [error]));
  const correct = trajectories.filter(({ answer }, i) => answer === rows[i].reward_model.ground_truth).length;
  const calls = trajectories.reduce((sum, one) => sum + one.calls.length, 0);
  const tokens = made[name].flat().reduce((sum, [, response]) => sum + response.length, 0);
  console.log(
    `${name.padEnd(9)} ${tasks.length} trajectories, ${calls} calls of the model, ${tokens} tokens, ${correct} right, ${errors.length} failed ${errors[0] ?? ''}`,
  );
}
await actor.close();
const [first, ...others] = Object.values(made).map((one) => JSON.stringify(one));
const same = others.every((other) => other === first);
console.log(same ? 'the same token ids in all of them' : 'the token ids differ');
process.exit(same ? 0 : 1);
