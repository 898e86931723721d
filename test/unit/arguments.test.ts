// What programs in JavaScript pass to the library: errors with a code that say what was expected, and nothing that is ignored.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import {
  applyKlPenalty,
  batchArithmetic,
  codeReward,
  computeAdvantages,
  configNotes,
  createKlController,
  createRewardManager,
  defineTool,
  describeConfig,
  exportCheckpoint,
  klPenalty,
  loadConfig,
  loadSftConfig,
  ResourcePools,
  readImages,
  registerAdvantageEstimator,
  registerRewardFunction,
  registerRewardManager,
  rolloutCorrection,
  SftTrainer,
  Tokenizer,
  Trainer,
  WorkerGroup,
} from '../../ts';
import { importWeights } from '../../ts/weights/weight_import';
import { runConfig, runDirectory } from '../helpers/fake_run';

const given = (value: unknown): never => value as never;
const refused = (message: RegExp): unknown =>
  expect.objectContaining({ code: 'INVALID_ARGUMENT', message: expect.stringMatching(message) });
const sftConfig = (): ReturnType<typeof loadSftConfig> => {
  const file = join(runDirectory(), 'sft.yaml');
  writeFileSync(file, 'data: { train_files: none.jsonl, messages_key: messages }\nmodel: { path: none }\n');
  return loadSftConfig(file);
};
const thrownBy = (run: () => unknown): unknown => {
  try {
    run();
  } catch (error) {
    return error;
  }
  return null;
};

const tool = defineTool({ name: 'a', description: 'b', parameters: z.object({}), run: () => 1 });

describe('trainers', () => {
  const config = (...overrides: string[]) => runConfig(runDirectory(), overrides);
  const made = (options: object, ...overrides: string[]): unknown =>
    thrownBy(() => new Trainer(config(...overrides), given(options)));

  it.each([undefined, null, 5, 'run.yaml', {}, { actor_rollout_ref: {}, trainer: {} }])(
    'take what a loader returned, not %j',
    (value) => {
      const wanted = /expected a configuration that load(Sft)?Config returned but got/;
      for (const Made of [Trainer, SftTrainer])
        expect(thrownBy(() => new Made(given(value)))).toEqual(refused(wanted));
      for (const reads of [batchArithmetic, configNotes, describeConfig])
        expect(thrownBy(() => reads(given(value)))).toEqual(
          refused(/expected a configuration that loadConfig or loadSftConfig returned/),
        );
    },
  );

  it('say so where the configuration is of the other one', () => {
    expect(thrownBy(() => new Trainer(given(sftConfig())))).toEqual(
      refused(/^\[Trainer\].*got one of loadSftConfig, which is for the other trainer/),
    );
    expect(thrownBy(() => new SftTrainer(given(config())))).toEqual(
      refused(/^\[SftTrainer\].*got one of loadConfig, which/),
    );
    expect(describeConfig(sftConfig())).toContain('none.jsonl');
  });

  it('know the names and kinds of their options', () => {
    expect(made({ rewards: () => 1 })).toEqual(refused(/unknown option 'rewards'; did you mean 'reward'\?/));
    expect(made({ reward: 5 })).toEqual(refused(/reward: expected a function but got 5/));
    expect(made({ onStep: 'x' })).toEqual(refused(/onStep: expected a function/));
    expect(made(given(null))).toEqual(refused(/expected an options object but got null/));
    expect(thrownBy(() => new SftTrainer(sftConfig(), given({ reward: () => 1 })))).toEqual(
      refused(/\[SftTrainer\] unknown option 'reward'/),
    );
    expect(made({ reward: () => 1, log: () => undefined })).toBeNull();
  });

  it('refuse a reward that the manager of the run would not call as it expects', () => {
    const fn = () => 1;
    expect(made({ reward: fn, batchReward: fn })).toEqual(
      refused(/reward and batchReward: expected one of them/),
    );
    expect(made({ batchReward: fn })).toEqual(refused(/batchReward: .*reward_manager.name is naive/));
    expect(made({ reward: fn }, 'reward.reward_manager.name=batch')).toEqual(refused(/give batchReward/));
    expect(made({ batchReward: fn }, 'reward.reward_manager.name=batch')).toBeNull();
  });

  it('refuse tools that are none, or that nobody would use', () => {
    const agent = 'actor_rollout_ref.rollout.multi_turn.enable=true';
    expect(made({ tools: 'x' }, agent)).toEqual(refused(/tools: expected a list of tools but got "x"/));
    expect(made({ tools: [tool, {}] }, agent)).toEqual(refused(/entry 1 is \{\}/));
    expect(made({ tools: [tool] })).toEqual(refused(/this run has no agent/));
    expect(made({ tools: [tool] }, agent)).toBeNull();
  });
});

describe('tools', () => {
  const made = (definition: object): unknown =>
    thrownBy(() =>
      defineTool(
        given({ name: 'a', description: 'b', parameters: z.object({}), run: () => 1, ...definition }),
      ),
    );

  it('are of what a model can be shown', () => {
    expect(made({ timeout: 5 })).toBeNull();
    expect(thrownBy(() => defineTool(given(undefined)))).toEqual(
      refused(/\[defineTool\] expected an options object/),
    );
    expect(made({ timout: 5 })).toEqual(refused(/unknown option 'timout'; did you mean 'timeout'/));
    expect(made({ name: 5 })).toEqual(refused(/tool 5: name: expected 1 to 64 letters/));
    expect(made({ description: undefined })).toEqual(refused(/description: expected a text, got undefined/));
    for (const timeout of ['1', 0, -1, Number.NaN])
      expect(made({ timeout })).toEqual(refused(/timeout: expected seconds > 0, got/));
    for (const parameters of [{ type: 'object', properties: {} }, null, 5, undefined])
      expect(made({ parameters })).toEqual(
        refused(/tool a: parameters: expected a schema of zod 4, such as/),
      );
    for (const value of [z.date(), z.bigint(), z.map(z.string(), z.string())])
      expect(made({ parameters: z.object({ value }) })).toEqual(
        refused(/tool a: parameters: .* cannot be represented in JSON Schema: expected what JSON can hold/),
      );
    expect(made({ parameters: z.string() })).toEqual(refused(/expected a schema of an object/));
  });

  it('may check their arguments asynchronously', async () => {
    const even = z.number().refine(async (value) => value % 2 === 0, 'expected an even number');
    const parameters = z.object({ even });
    const { call } = defineTool({ name: 'a', description: 'b', parameters, run: (args) => args.even });
    const context = { signal: new AbortController().signal, createKwargs: {} };
    expect(await call({ even: 4 }, context)).toBe(4);
    await expect(call({ even: 3 }, context)).rejects.toThrow('arguments.even: expected an even number');
  });
});

describe('functions', () => {
  it.each<[string, RegExp, () => unknown]>([
    [
      'a configuration without a path',
      /\[loadConfig\] expected the path of a configuration file but got undefined/,
      () => loadConfig(given(undefined)),
    ],
    [
      'a path that is a number',
      /\[loadSftConfig\] expected the path .* got 5/,
      () => loadSftConfig(given(5)),
    ],
    [
      'overrides that are a text',
      /overrides: expected a list of texts .* got "a=1"/,
      () => loadConfig('a.yaml', given('a=1')),
    ],
    [
      'overrides that are no texts',
      /overrides: expected a list of texts .* got \[5\]/,
      () => loadConfig('a.yaml', given([5])),
    ],
    [
      'advantages of no batch',
      /\[computeAdvantages\] expected a Batch/,
      () => computeAdvantages('grpo', given({})),
    ],
    [
      'a KL penalty of no batch',
      /\[applyKlPenalty\] expected a Batch/,
      () => applyKlPenalty(given(null), createKlController(), 'kl'),
    ],
    ['a correction of no batch', /\[rolloutCorrection\] expected a Batch/, () => rolloutCorrection(given(5))],
    ['a KL without a type', /unknown KL penalty undefined/, () => klPenalty(given(undefined), [], [])],
    [
      'a mistyped option of a controller',
      /unknown option 'klCoeff'; did you mean 'klCoef'/,
      () => createKlController(given({ klCoeff: 1 })),
    ],
    [
      'a controller of a text',
      /\[createKlController\] expected an options object/,
      () => createKlController(given('fixed')),
    ],
    [
      'a mistyped option of an estimator',
      /unknown option 'need'; did you mean 'needs'/,
      () => registerAdvantageEstimator('mine', () => given(1), given({ need: ['values'] })),
    ],
    [
      'needs that are no list',
      /needs: expected a list of columns but got "values"/,
      () => registerAdvantageEstimator('mine', () => given(1), given({ needs: 'values' })),
    ],
    [
      'a reward function that is none',
      /\[registerRewardFunction\] expected a function for 'mine' but got 5/,
      () => registerRewardFunction('mine', given(5)),
    ],
    [
      'a reward manager without a name',
      /\[registerRewardManager\] expected a name but got undefined/,
      () =>
        registerRewardManager(
          given(undefined),
          given(() => 1),
        ),
    ],
    [
      'a mistyped option of a manager',
      /unknown option 'timeout'; did you mean 'timeoutMs'/,
      () => createRewardManager('naive', () => 1, given({ timeout: 5 })),
    ],
    [
      'a manager of no function',
      /\[createRewardManager\] expected a function for 'naive'/,
      () => createRewardManager('naive', given(null)),
    ],
    [
      'a code reward without a sandbox',
      /\[codeReward\] expected a function that gives a sandbox/,
      () => codeReward(given(null)),
    ],
    [
      'a mistyped option of a code reward',
      /unknown option 'continous'; did you mean 'continuous'/,
      () =>
        codeReward(
          given(() => null),
          given({ continous: false }),
        ),
    ],
    [
      'a tokenizer without a path',
      /\[Tokenizer.load\] expected the path of/,
      () => Tokenizer.load(given(undefined)),
    ],
    [
      'a checkpoint without a path',
      /\[exportCheckpoint\] expected the path of a checkpoint but got 5/,
      () => exportCheckpoint(given(5), 'out'),
    ],
    [
      'an export to nowhere',
      /expected the path of a directory to write but got ""/,
      () => exportCheckpoint('run', ''),
    ],
    [
      'images of no model',
      /\[readImages\] expected the path of a model directory/,
      () => readImages(given({}), []),
    ],
    [
      'a group without options',
      /\[worker group\] expected an options object/,
      () => WorkerGroup.launch(given(undefined)),
    ],
    [
      'a mistyped option of a group',
      /unknown option 'worldsize'; did you mean 'worldSize'/,
      () => WorkerGroup.launch(given({ worldSize: 1, device: 'cpu', worldsize: 2 })),
    ],
    [
      'a group of another device',
      /device: expected one of cpu, cuda but got "tpu"/,
      () => WorkerGroup.launch(given({ worldSize: 1, device: 'tpu' })),
    ],
    [
      'a time that is a text',
      /closeTimeoutMs: expected a number from 0 .* got "5"/,
      () => WorkerGroup.launch(given({ worldSize: 1, device: 'cpu', closeTimeoutMs: '5' })),
    ],
    [
      'weights that are no stream',
      /\[importWeights\] expected a stream of buckets .* got undefined/,
      () => importWeights(given({}), given(undefined)),
    ],
    ['pools that are none', /pools: expected at least one/, () => ResourcePools.launch(given({}))],
  ])('refuse %s', async (_, message, run) => {
    await expect((async () => run())()).rejects.toEqual(refused(message));
  });

  it('refuse what is no bucket of weights', async () => {
    const engine = {
      model: { mapping: [] },
      replaceWeights: (_: string, replace: (touch: () => void) => Promise<void>) => replace(() => undefined),
    };
    for (const bucket of [{}, null, 5])
      await expect(importWeights(given(engine), given([bucket]))).rejects.toMatchObject({
        code: 'INVALID_MODEL',
        message: expect.stringContaining('expected buckets { parts: [...] } but got'),
      });
  });

  it('leave nothing of what they refuse', () => {
    expect(
      thrownBy(() => registerAdvantageEstimator('mine', () => given(1), { needs: ['values'] })),
    ).toBeNull();
    expect(thrownBy(() => registerRewardFunction('mine', () => 1))).toBeNull();
  });
});
