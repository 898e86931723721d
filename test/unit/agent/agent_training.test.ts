import { join } from 'node:path';
import { defineAgent } from '../../../ts/agent/define';
import type { Batch } from '../../../ts/batch/batch';
import type { TrainerOptions } from '../../../ts/trainer/trainer';
import { FakeEngines, read, runDirectory } from '../../helpers/fake_run';
import { add, metricsOf, run, twoTurns } from './trained_agent';

describe('a trainer with an agent', () => {
  test('asks it again of a step whose responses were kept, and has what it got then', async () => {
    const kept = [
      'skip.rollout.enable=true',
      `skip.rollout.dump_dir=${runDirectory()}`,
      'skip.rollout.steps=[1]',
      'trainer.total_training_steps=1',
    ];
    const trained = async (overrides: readonly string[]) => {
      const {
        directory,
        engines,
        trainer: one,
      } = run({
        overrides: [...overrides],
        options: { agent: twoTurns, tools: [add] },
      });
      await one.fit();
      const { 'skip/requests': asked, 'skip/recalled': recalled, ...rest } = metricsOf(directory)[0] ?? {};
      return {
        asked,
        recalled,
        rewards: rest['critic/rewards/mean'],
        tokens: engines.updates.map((batch) => [...batch.get('tokens')]),
        generated: engines.calls.filter((name) => name === 'generate').length,
      };
    };
    const first = await trained(kept);
    const second = await trained(kept);
    expect(first).toMatchObject({ asked: 16, recalled: 0 });
    expect(second).toEqual({ ...first, recalled: 16, generated: 0 });
  });

  test('trains every sampled token once, with masks, rewards of turns and siblings', async () => {
    const { directory, engines, trainer: one } = run({ options: { agent: twoTurns, tools: [add] } });
    await one.fit();
    // Two mini-batches of one prompt: four trajectories, of which those of odd tasks are two sequences each.
    expect(engines.miniBatches[0]).toEqual([4, 8]);
    const plain = engines.updates[0]?.slice(0, 4);
    const branched = engines.updates[0]?.slice(4);
    expect(new Set(plain?.get('uid') as unknown[]).size).toBe(1);
    for (const batch of [plain, branched]) {
      const mask = batch?.get('responseMask') as Uint8Array;
      const turn = batch?.get('turn') as Int32Array;
      const version = batch?.get('version') as Int32Array;
      const logProbs = batch?.get('rolloutLogProbs') as Float32Array;
      const advantages = batch?.get('advantages') as Float32Array;
      mask.forEach((bit, t) => {
        expect(version[t] === -1).toBe(bit === 0);
        if (bit === 0) expect([logProbs[t], advantages[t]]).toEqual([0, 0]);
      });
      expect(new Set(turn)).toEqual(new Set([0, 1]));
    }
    // Each first turn has its own reward.
    const scores = plain?.get('tokenScores') as Float32Array;
    expect(scores.filter((score) => score === 0.125)).toHaveLength(4);
    const [metrics] = metricsOf(directory);
    expect(metrics).toMatchObject({
      'agent/failed': 0,
      'agent/model_calls/mean': 2,
      'num_turns/mean': 4,
      'num_turns/min': 4,
      'num_turns/max': 4,
      'tool_call_counts/mean': 1,
      'tool/add/calls': 8,
      'env/rewritten/mean': 0.5,
    });
    expect(metrics?.['tool/add/errors']).toBeGreaterThan(0);
    expect(Object.keys(metrics ?? {}).filter((name) => /seconds|agent_loop/.test(name))).toEqual([]);
    const [timings] = metricsOf(directory, 'timings.jsonl').filter(
      (line) => 'agent_loop/tool_calls/max' in line,
    );
    expect(timings).toHaveProperty(['agent_loop/generate_sequences/mean']);
    expect(timings).toHaveProperty(['tool/add/seconds/mean']);
    expect(Object.keys(timings ?? {}).filter((name) => name.includes('/slowest/'))).toEqual([
      'agent_loop/slowest/generate_sequences',
      'agent_loop/slowest/tool_calls',
      'agent_loop/slowest/prompt_length',
      'agent_loop/slowest/response_length',
    ]);
    const samples = read(directory, join('samples', '1.jsonl'))
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(samples[0]).toMatchObject({
      num_turns: 4,
      turns: [{ role: 'tool', content: expect.any(String) }],
    });
    expect(samples[0].score).toBeGreaterThan(1);
    // Two tokens of each call and two between them, of one sequence or of two, whose first is not the row of the trajectory's number.
    const { promptLens } = plain as Batch;
    expect(samples.map((row) => [row.index, row.response_length])).toEqual(
      [0, 2, 4, 6].map((index) => [index, 6]),
    );
    expect(samples[0].prompt_length).toBe(promptLens[0]);
    expect(samples[3].prompt_length).toBe(branched?.promptLens[0]);
  });

  test('two runs give the same metrics, whatever takes how long', async () => {
    const slow = defineAgent({
      ...twoTurns,
      run: async (task, context) => {
        await new Promise((resolve) => setTimeout(resolve, Math.random() * 5));
        return await twoTurns.run(task, context);
      },
    });
    const first = run({ options: { agent: twoTurns, tools: [add] } });
    const again = run({ options: { agent: slow, tools: [add] } });
    // The fake engine numbers requests of a call: a real one does not.
    await first.trainer.fit();
    await again.trainer.fit();
    const names = (directory: string): string[] => Object.keys(metricsOf(directory)[0] ?? {}).sort();
    expect(names(again.directory)).toEqual(names(first.directory));
  });

  describe('prompts ahead', () => {
    const ahead = ['trainer.v1.trainer_mode=colocate_async', 'trainer.test_freq=1'];

    test('a validation beside them keeps to the number of trajectories at once', async () => {
      let [now, most, begun] = [0, 0, 0];
      let release: () => void = () => undefined;
      const validated = new Promise<void>((done) => {
        release = done;
      });
      const agent = defineAgent({
        run: async ({ validation }) => {
          most = Math.max(most, ++now);
          // Those of the first step do not wait.
          if (validation) release();
          else if (begun++ >= 8) await validated;
          await new Promise(setImmediate);
          now--;
          return begun;
        },
      });
      const overrides = [...ahead, 'actor_rollout_ref.rollout.agent.max_concurrent=9'];
      await run({ options: { agent }, overrides }).trainer.fit();
      expect(most).toBe(9);
    });

    test('calls of older prompts go first', async () => {
      const engines = new FakeEngines();
      await run({ engines, options: { agent: twoTurns, tools: [add] }, overrides: ahead }).trainer.fit();
      const trained = engines.priorities.filter((priority) => (priority as number) < -2);
      // Of the same batch, whose trajectories have had no call or one.
      expect(new Set(trained)).toEqual(
        new Set([1, 2, 3].flatMap((batch) => [0, 1].map((calls) => -batch * 2 ** 20 - calls))),
      );
    });
  });

  test('our own engine takes first what has had fewer calls; servers are asked for no priorities', async () => {
    const own = run({ options: { agent: twoTurns, tools: [add] } });
    await own.trainer.fit();
    const { priorities } = own.engines;
    expect(priorities.filter((one) => one === -1)).toHaveLength(priorities.length / 2);
    expect(priorities.filter((one) => one === 0)).toHaveLength(priorities.length / 2);
    const server = ['name=vllm', 'mode=server', 'server.addresses=[http://127.0.0.1:1]'];
    const overrides = server.map((one) => `actor_rollout_ref.rollout.${one}`);
    const theirs = run({ overrides, options: { agent: twoTurns, tools: [add] } });
    await theirs.trainer.fit();
    expect(new Set(theirs.engines.priorities)).toEqual(new Set([undefined]));
  });

  test('validation tells the turns of its conversations', async () => {
    const { trainer: one } = run({
      options: { agent: twoTurns, tools: [add] },
      overrides: ['trainer.val_before_train=true', 'trainer.total_training_steps=1'],
    });
    const { validation } = await one.fit();
    const turns = Object.entries(validation ?? {}).filter(([name]) => name.startsWith('val-aux/num_turns/'));
    expect(Object.fromEntries(turns)).toEqual({
      'val-aux/num_turns/mean': 4,
      'val-aux/num_turns/max': 4,
      'val-aux/num_turns/min': 4,
    });
  });

  test('without a reward of its own, the reward function scores the answer', async () => {
    const seen: unknown[] = [];
    const quiet = defineAgent({
      run: async ({ promptIds }, { model }) => {
        const { tokens } = await model.generate(promptIds);
        await model.generate([...promptIds, ...tokens]);
        return { answer: 'forty-two' };
      },
    });
    const { directory, trainer: one } = run({
      options: {
        agent: quiet,
        reward: ({ response, numTurns }) => {
          seen.push(response, numTurns);
          return 2;
        },
      },
    });
    await one.fit();
    expect(new Set(seen)).toEqual(new Set(['forty-two', 4]));
    expect(metricsOf(directory)[0]).toMatchObject({ 'critic/score/mean': 2 });
  });
});

test.each([
  [
    'the tool agent shows them with every prompt',
    ['actor_rollout_ref.rollout.multi_turn.enable=true'],
    null,
    ['add'],
  ],
  ['what another agent shows is its own matter', [], twoTurns, null],
  ['there are none without an agent', [], null, null],
])('what the data count of tools: %s', async (_, overrides, agent, names) => {
  const told: unknown[] = [];
  const stop = new Error('counted');
  const options: TrainerOptions = {
    data: async (_config, tools) => {
      told.push(tools);
      throw stop;
    },
    // Where nobody could use them they are refused.
    ...(agent || overrides.length > 0 ? { tools: [add] } : {}),
    ...(agent ? { agent } : {}),
  };
  await expect(run({ overrides, options }).trainer.fit()).rejects.toThrow(stop);
  const shown = told[0] as { function: { name: string } }[] | null;
  expect(shown?.map(({ function: { name } }) => name) ?? null).toEqual(names);
});
