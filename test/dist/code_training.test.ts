import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PythonSandbox } from '../../ts/reward/code/python_sandbox';
import { Trainer } from '../../ts/trainer/trainer';
import type { TrainingData } from '../../ts/trainer/training_data';
import { FakeEngines, fakeData, runConfig } from '../helpers/fake_run';
import { FusionServer } from '../helpers/fusion_server';
import { namespacesPermitted } from '../helpers/namespaces';

// A run whose responses are programs that print their first token, and whose tests expect an even one.

const isolation = namespacesPermitted ? 'namespaces' : 'process';

function codeData(dataSources: string[] = ['taco']): TrainingData {
  const data = fakeData();
  const asCode = <T extends object>(prompt: T): T => ({
    ...prompt,
    dataSource: 'taco',
    groundTruth: JSON.stringify({ inputs: ['0\n', '1\n'], outputs: ['even', 'even'] }),
  });
  return {
    ...data,
    train: {
      ...data.train,
      next: async () => {
        const { prompts, epoch } = await data.train.next();
        return { prompts: prompts.map(asCode), epoch };
      },
    },
    validation: [],
    dataSources: new Set(dataSources),
    decoder: {
      decode: (tokens) => `\`\`\`python\nprint("odd" if ${tokens[0]} % 2 else "even")\n\`\`\``,
    },
  };
}

async function train(...overrides: string[]) {
  const directory = mkdtempSync(join(tmpdir(), 'trainer-'));
  const config = runConfig(directory, [
    `reward.sandbox.isolation=${isolation}`,
    'trainer.total_training_steps=1',
    'trainer.val_before_train=false',
    `trainer.rollout_data_dir=${directory}/rollouts`,
    ...overrides,
  ]);
  const engines = new FakeEngines();
  await new Trainer(config, {
    engines: async (_, needs) => engines.create(needs),
    data: async () => codeData(),
  }).fit();
  const metrics = JSON.parse(readFileSync(join(directory, 'metrics.jsonl'), 'utf8').split('\n')[0] as string);
  const rows = readFileSync(join(directory, 'rollouts', '1.jsonl'), 'utf8')
    .trim()
    .split('\n');
  return { metrics, rows: rows.map((line) => JSON.parse(line)) };
}

const check = ({ metrics, rows }: Awaited<ReturnType<typeof train>>): void => {
  expect(rows).toHaveLength(8);
  for (const { output, score, acc, tests_passed, verdict } of rows) {
    const even = Number(/ if (\d) /.exec(output)?.[1]) % 2 === 0;
    expect({ score, acc, tests_passed, verdict }).toEqual(
      even
        ? { score: 1, acc: 1, tests_passed: 2, verdict: 'accepted' }
        : { score: 0, acc: 0, tests_passed: 0, verdict: 'wrong_answer' },
    );
  }
  expect(metrics).toHaveProperty(['reward/tests_passed/mean']);
};

test('a code data set is scored in the sandbox, without a url', async () => {
  check(await train());
});

test('with a url, on that server', async () => {
  const server = await FusionServer.start(await PythonSandbox.create({ isolation }));
  try {
    check(await train(`reward.sandbox_fusion.url=${server.url}`, 'reward.sandbox_fusion.max_concurrent=2'));
    expect(server.requests).toHaveLength(16);
    expect(server.most).toBe(2);
    expect(server.requests[0]).toMatchObject({ memory_limit_MB: 1024, run_timeout: 10 });
  } finally {
    await server.close();
  }
});

test('a sandbox that does not work is an error before training', async () => {
  await expect(train('reward.sandbox.python=/nowhere/python3')).rejects.toMatchObject({
    code: 'SANDBOX_FAILED',
  });
  await expect(train('reward.sandbox_fusion.url=nowhere')).rejects.toThrow(
    /sandbox_fusion.url: expected http/,
  );
});
