import { defineAgent } from '../../../ts/agent/define';
import { PythonSandbox } from '../../../ts/reward/code/python_sandbox';
import type { RunRequest } from '../../../ts/reward/code/runner';
import { fakeData } from '../../helpers/fake_run';
import { metricsOf, run } from './trained_agent';

/** Asks the tool python once; what it wrote is scored by tests. */
const coder = defineAgent({
  name: 'coder',
  run: async ({ promptIds }, { model, tools }) => {
    await model.generate(promptIds, { maxNewTokens: 2 });
    await tools.call('python', { code: 'print("asked")' });
    return { answer: '```python\nprint("scored")\n```' };
  },
});

test('a run has one sandbox, whose limits hold for its rewards and for the tool of its agents together', async () => {
  const asked: RunRequest[] = [];
  const runner = {
    run: async (request: RunRequest) => {
      asked.push(request);
      return { status: 'finished' as const, stdout: 'even\n', stderr: '' };
    },
  };
  const create = jest.spyOn(PythonSandbox, 'create').mockResolvedValue(runner as unknown as PythonSandbox);
  try {
    const usual = fakeData();
    const ofCode = {
      dataSource: 'taco',
      groundTruth: JSON.stringify({ inputs: ['0\n'], outputs: ['even'] }),
    };
    const data = {
      ...usual,
      validation: [],
      dataSources: new Set(['taco']),
      train: {
        ...usual.train,
        next: async () => {
          const { prompts, epoch } = await usual.train.next();
          return { prompts: prompts.map((prompt) => ({ ...prompt, ...ofCode })), epoch };
        },
      },
    };
    const tokenizer = { encode: () => new Int32Array(), decode: () => '' };
    const { directory, trainer } = run({
      overrides: [
        'actor_rollout_ref.rollout.agent.python_tool=true',
        'reward.sandbox.max_concurrent=3',
        'trainer.total_training_steps=1',
      ],
      options: {
        agent: coder,
        data: async () => ({ ...data, tokenizer: tokenizer as never }),
        // The one of the data source.
        reward: undefined,
      },
    });
    await trainer.fit();
    expect(metricsOf(directory)[0]).toMatchObject({ 'tool/python/calls': 8, 'critic/rewards/mean': 1 });
    // Of each response one program of the agent, and one of its test.
    const ofAgent = asked.filter(({ code }) => code === 'print("asked")');
    expect([ofAgent.length, asked.length]).toEqual([8, 16]);
    expect(create).toHaveBeenCalledTimes(1);
    expect(create).toHaveBeenCalledWith(expect.objectContaining({ maxConcurrent: 3 }));
  } finally {
    create.mockRestore();
  }
});
