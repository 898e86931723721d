import { Trainer } from '../../../ts/trainer/trainer';
import { FakeEngines, fakeData, lengthReward, runConfig } from '../../helpers/fake_run';
import { type Recorded, type Reply, serve, type TestServer, temporary } from '../../helpers/logged_run';

let server: TestServer;
afterEach(() => server.close());

function accept({ path }: Recorded): Reply {
  if (path.includes('get-by-name')) return { json: { experiment: { experiment_id: '1' } } };
  if (path.endsWith('/runs/create')) return { json: { run: { info: { run_id: 'r1' } } } };
  return { json: {} };
}

/** One session of six steps; `at`: what happens at a call of the engines. */
function session(directory: string, at: { call: number; work: (trainer: Trainer) => void } | null) {
  const engines = new FakeEngines();
  const overrides = [
    'trainer.save_freq=2',
    'trainer.logger=[mlflow]',
    `logging.mlflow.tracking_uri=${server.url}`,
  ];
  const trainer = new Trainer(runConfig(directory, overrides), {
    reward: lengthReward,
    engines: async (_, needs) => engines.create(needs),
    data: async () => fakeData(),
  });
  engines.onCall = (count) => {
    if (count === at?.call) at.work(trainer);
  };
  return trainer.fit();
}

test('a run on a server is interrupted, goes on, fails, and finishes, as the run does', async () => {
  server = await serve(accept);
  const directory = temporary();
  const first = await session(directory, { call: 8, work: (trainer) => trainer.requestStop('SIGINT') });
  expect(first).toMatchObject({ interrupted: true });
  const failing = session(directory, {
    call: 12,
    work: () => {
      throw new Error('no luck');
    },
  });
  await expect(failing).rejects.toThrow('no luck');
  const last = await session(directory, null);
  expect(last).toMatchObject({ step: 6, interrupted: false });

  expect(server.to(/runs\/create/)).toHaveLength(1);
  const statuses = server.to(/runs\/update/).map(({ body }) => body.status);
  expect(statuses).toEqual(['KILLED', 'RUNNING', 'FAILED', 'RUNNING', 'FINISHED']);
  const scores = server
    .to(/log-batch/)
    .flatMap(({ body }) => (body.metrics ?? []) as { key: string; step: number }[])
    .filter(({ key }) => key === 'critic/score/mean');
  expect(scores.map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6]);
});
