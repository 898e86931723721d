import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { type AgentResult, defineAgent } from '../../../ts/agent/define';
import type { AgentModel } from '../../../ts/agent/model/agent_model';
import { defineTool } from '../../../ts/agent/tools/tool';
import { TrajectoryEnded } from '../../../ts/agent/trajectory_ended';
import { read } from '../../helpers/fake_run';
import { add, metricsOf, run, twoTurns } from './trained_agent';

/** What JSON cannot hold. */
const circle = (): object => {
  const list: unknown[] = [];
  list.push(list);
  return list;
};
const refuse = (): never => {
  throw new Error('not for you');
};

describe('a trainer with an agent', () => {
  test('a trajectory that fails has a reward of 0 and is counted; with fail it ends the run', async () => {
    let tasks = 0;
    const failing = defineAgent({
      run: async ({ promptIds }, { model }) => {
        await model.generate(promptIds);
        if (tasks++ % 2 === 0) throw new Error('out of ideas');
        return 1;
      },
    });
    const { directory, trainer: one } = run({ options: { agent: failing } });
    await one.fit();
    const [metrics] = metricsOf(directory);
    expect(metrics).toMatchObject({ 'agent/failed': 4, 'critic/score/mean': 0.5 });
    const dump = readdirSync(join(directory, 'samples')).length;
    expect(dump).toBeGreaterThan(0);
    const strict = run({
      options: { agent: failing },
      overrides: ['actor_rollout_ref.rollout.agent.on_error=fail'],
    });
    await expect(strict.trainer.fit()).rejects.toMatchObject({
      code: 'AGENT_FAILED',
      message: expect.stringMatching(
        /failed on task \d of the batch: out of ideas.*set rollout.agent.on_error=zero/,
      ),
    });
  });

  test('an agent that never works ends the run at once', async () => {
    const broken = defineAgent({
      run: () => {
        throw new Error('no such file');
      },
    });
    const { trainer: one } = run({ options: { agent: broken } });
    await expect(one.fit()).rejects.toThrow(
      /every one of 8 tasks: no such file, at .*failing_agents\.test\.ts:\d+\. Correct the agent, or what its tools need.*on_error=zero is for some/,
    );
  });

  test.each<[string, (model: AgentModel) => unknown, string]>([
    ['a list', () => [1], 'expected a number, an object or nothing from the agent, got [1]'],
    ['a text', () => 'right', 'expected a number, an object or nothing from the agent, got "right"'],
    [
      'what JSON cannot hold',
      () => {
        const circle: Record<string, unknown> = { reward: 1 };
        circle['self'] = circle;
        return circle;
      },
      'expected JSON values beside the reward',
    ],
    [
      'NaN beside the reward',
      () => ({ reward: 1, steps: [{ loss: Number.NaN }] }),
      'expected finite numbers beside the reward, got steps[0].loss = NaN',
    ],
    [
      'a metric that is none',
      () => ({ metrics: { depth: 'deep' } }),
      'metrics.depth: expected a finite number, got "deep"',
    ],
    [
      'an answer without end',
      () => ({ answer: 'a'.repeat(2 ** 20 + 1) }),
      'an answer of at most 1048576 characters, got 1048577',
    ],
    ['metrics that are none', () => ({ metrics: 3 }), 'metrics: expected an object of numbers, got 3'],
    ['no context at all', (model) => model.generate([]), 'promptIds: nothing at position 0'],
    ['a context outside the vocabulary', (model) => model.generate([-1]), 'promptIds: -1 at position 0'],
  ])('an agent that gives or asks for %s costs its own trajectory', async (_, wrong, says) => {
    const agent = defineAgent({
      run: async ({ promptIds, sample }, { model }) => {
        await model.generate(promptIds);
        return sample === 0 ? ((await wrong(model)) as AgentResult) : 1;
      },
    });
    const overrides = ['trainer.total_training_steps=1'];
    const { directory, trainer: one } = run({ options: { agent }, overrides });
    await one.fit();
    expect(metricsOf(directory)[0]).toMatchObject({ 'agent/failed': 2, 'critic/score/mean': 0.75 });
    const strict = run({
      options: { agent },
      overrides: [...overrides, 'actor_rollout_ref.rollout.agent.on_error=fail'],
    });
    await expect(strict.trainer.fit()).rejects.toMatchObject({
      code: 'AGENT_FAILED',
      message: expect.stringContaining(says),
    });
  });

  test.each([
    ['without a text', () => ({ role: 5 }), 'got {"role":5}'],
    ['whose time is a text', () => ({ role: 'tool', content: 'a', seconds: 'two' }), '"seconds":"two"'],
    ['whose error is an object', () => ({ role: 'tool', content: 'a', error: {} }), '"error":{}'],
    ['that holds itself', () => ({ role: 'tool', content: circle() }), 'which JSON cannot hold'],
    ['that throws when it is read', () => ({ role: 'tool', content: { toJSON: refuse } }), 'not for you'],
    ['that is a list', () => ['tool', 'a'], 'got ["tool","a"]'],
  ])('a turn %s costs its own trajectory', async (_, turn, says) => {
    const agent = defineAgent({
      run: async ({ promptIds, sample }, { model, note }) => {
        await model.generate(promptIds);
        if (sample === 0) note(turn() as never);
        return 1;
      },
    });
    const { directory, trainer: one } = run({
      options: { agent },
      overrides: ['trainer.total_training_steps=1'],
    });
    await one.fit();
    expect(metricsOf(directory)[0]).toMatchObject({ 'agent/failed': 2, 'critic/score/mean': 0.75 });
    const strict = run({ options: { agent }, overrides: ['actor_rollout_ref.rollout.agent.on_error=fail'] });
    await expect(strict.trainer.fit()).rejects.toThrow(says);
  });

  test.each([
    ['throws', () => refuse()],
    ['rejects', async () => refuse()],
  ])('an agent that %s when it is closed has trained all the same', async (_, close) => {
    const agent = defineAgent({
      run: async ({ promptIds }, { model }) => (await model.generate(promptIds)).tokens.length,
      close,
    });
    const { trainer: one } = run({
      options: { agent },
      overrides: ['trainer.total_training_steps=1'],
    });
    expect(await one.fit()).toMatchObject({ step: 1 });
  });

  test('a turn is kept as it was noted, without what is null', async () => {
    const agent = defineAgent({
      run: async ({ promptIds }, { model, note, tools }) => {
        const turn = { role: 'tool', content: { list: [1] }, seconds: null, error: null };
        note(turn as never);
        Object.assign(turn, { content: circle() });
        await model.generate(promptIds);
        const { error } = await tools.call(Symbol('add') as never, {});
        return { reward: 1, error };
      },
    });
    const { directory, trainer: one } = run({
      options: { agent, tools: [add] },
      overrides: ['trainer.total_training_steps=1'],
    });
    await one.fit();
    const [line] = read(directory, join('samples', '1.jsonl')).split('\n');
    expect(JSON.parse(line as string)).toMatchObject({ turns: [{ role: 'tool', content: { list: [1] } }] });
    expect(Object.keys(JSON.parse(line as string).turns[0])).toEqual(['role', 'content']);
    expect(metricsOf(directory)[0]).toMatchObject({ 'agent/failed': 0, 'tool/unknown/errors': 8 });
  });

  test('an agent that hangs costs its own trajectory; what it awaits is aborted', async () => {
    const aborted: unknown[] = [];
    const hanging = defineAgent({
      run: async ({ promptIds, sample }, { model, signal }) => {
        await model.generate(promptIds);
        if (sample > 0) return 1;
        signal.addEventListener('abort', () => aborted.push(signal.reason));
        await new Promise(() => undefined);
        return 0;
      },
    });
    const { directory, trainer: one } = run({
      options: { agent: hanging },
      overrides: [
        'actor_rollout_ref.rollout.agent.timeout=0.05',
        'trainer.total_training_steps=1',
        'data.val_files=null',
      ],
    });
    await one.fit();
    expect(metricsOf(directory)[0]).toMatchObject({ 'agent/failed': 2 });
    expect(aborted.length).toBeGreaterThanOrEqual(2);
    expect(String(aborted[0])).toMatch(/did not end within 0.05 s/);
    for (const reason of aborted) expect(reason).toBeInstanceOf(TrajectoryEnded);
  });

  test.each([
    ['that ends', () => 1],
    [
      'that fails',
      () => {
        throw new Error('no');
      },
    ],
  ])('what an agent %s has not waited for hears that its trajectory has ended', async (_, ends) => {
    const left: Promise<unknown>[] = [];
    const hasty = defineAgent({
      run: async ({ promptIds }, { model, tools }) => {
        await model.generate(promptIds);
        left.push(tools.call('wait', {}).catch((error: unknown) => error));
        return ends();
      },
    });
    const wait = defineTool({
      name: 'wait',
      description: 'Waits',
      parameters: z.object({}),
      run: () => new Promise(() => undefined),
    });
    const { trainer: one } = run({
      options: { agent: hasty, tools: [wait] },
      overrides: ['trainer.total_training_steps=1', 'data.val_files=null'],
    });
    await one.fit().catch(() => undefined);
    expect(left.length).toBeGreaterThan(0);
    for (const reason of await Promise.all(left)) expect(reason).toBeInstanceOf(TrajectoryEnded);
  });

  test('an engine that fails ends the run, whatever on_error says', async () => {
    const { engines, trainer: one } = run({ options: { agent: twoTurns, tools: [add] } });
    engines.onCall = (_, name) => {
      if (name === 'generate') throw new Error('worker died');
    };
    await expect(one.fit()).rejects.toThrow('worker died');
  });
});
