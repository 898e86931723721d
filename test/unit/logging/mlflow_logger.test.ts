import { flatParams, MlflowLogger, mlflowKey } from '../../../ts/logging/mlflow_logger';
import {
  loggedRun,
  type Recorded,
  type Reply,
  serve,
  type TestServer,
  temporary,
} from '../../helpers/logged_run';

const API = '/api/2.0/mlflow';
const MISSING = { status: 404, json: { error_code: 'RESOURCE_DOES_NOT_EXIST' } };

function accept({ path }: Recorded): Reply {
  if (path.startsWith(`${API}/experiments/get-by-name`)) return MISSING;
  if (path === `${API}/experiments/create`) return { json: { experiment_id: '7' } };
  if (path === `${API}/runs/create`) return { json: { run: { info: { run_id: 'r1' } } } };
  return { json: {} };
}

let server: TestServer;
afterEach(() => server.close());

const make = (options: Parameters<typeof loggedRun>[0] = {}) => {
  const run = loggedRun({
    ...options,
    environment: { MLFLOW_TRACKING_URI: `${server.url}/`, ...options.environment },
  });
  return { run, logger: new MlflowLogger(run) };
};
const metrics = () => server.to(/log-batch/).flatMap(({ body }) => body.metrics ?? []);

test('finds or makes the experiment, makes the run, sends configuration and metrics, and ends the run', async () => {
  server = await serve(accept);
  const { run, logger } = make({ environment: { MLFLOW_TRACKING_TOKEN: 'token-123' } });
  logger.log({ 'val-core/gsm8k/acc/mean@4': 0.5, 'actor/lr': 1e-6 }, 1);
  logger.log({ a: NaN, b: Infinity, c: -Infinity }, 2);
  await logger.close('interrupted');

  const calls = server.requests.map(({ method, path }) => `${method} ${path.replace(API, '')}`);
  expect(calls).toEqual([
    'GET /experiments/get-by-name?experiment_name=sums',
    'POST /experiments/create',
    'POST /runs/create',
    'POST /runs/log-batch',
    'POST /runs/log-batch',
    'POST /runs/update',
  ]);
  for (const { headers } of server.requests) expect(headers.authorization).toBe('Bearer token-123');
  expect(server.requests[1]?.body).toEqual({ name: 'sums' });
  expect(server.requests[2]?.body).toMatchObject({ experiment_id: '7', run_name: 'grpo-1' });
  const { params } = server.requests[3]?.body ?? {};
  expect(params).toContainEqual({ key: 'trainer/project_name', value: 'sums' });
  expect(params).toContainEqual({ key: 'logging/wandb/entity', value: 'null' });
  const sent = metrics();
  expect(sent.map(({ key, value, step }: Record<string, unknown>) => [key, value, step])).toEqual([
    ['val-core/gsm8k/acc/mean_at_4', 0.5, 1],
    ['actor/lr', 1e-6, 1],
    ['a', 'NaN', 2],
    ['b', 'Infinity', 2],
    ['c', '-Infinity', 2],
  ]);
  for (const { timestamp } of sent) expect(Math.abs(timestamp - Date.now())).toBeLessThan(600_000);
  expect(server.requests.at(-1)?.body).toMatchObject({ run_id: 'r1', status: 'KILLED' });
  expect(run.said).toEqual([`mlflow: ${server.url}/#/experiments/7/runs/r1`]);
  expect(run.warned).toEqual([]);
});

test('at most 1000 metrics and 100 parameters a request', async () => {
  server = await serve(accept);
  const directory = temporary();
  const run = loggedRun({ directory, environment: { MLFLOW_TRACKING_URI: server.url } });
  const many = Object.fromEntries(Array.from({ length: 230 }, (_, i) => [`k${i}`, i]));
  const logger = new MlflowLogger({ ...run, record: { ...run.record, many } });
  logger.log(Object.fromEntries(Array.from({ length: 2500 }, (_, i) => [`m${i}`, i])), 1);
  await logger.close('finished');
  const batches = server.to(/log-batch/).map(({ body }) => body);
  const sizes = (key: string): number[] => batches.flatMap((body) => (body[key] ? [body[key].length] : []));
  expect(sizes('metrics')).toEqual([1000, 1000, 500]);
  expect(Math.max(...sizes('params'))).toBe(100);
  expect(metrics().map(({ value }: { value: number }) => value)).toEqual(
    Array.from({ length: 2500 }, (_, i) => i),
  );
});

test('a resumed run goes on with the same id; steps that the server has are not sent again', async () => {
  server = await serve((request) =>
    request.path.includes('get-by-name') ? { json: { experiment: { experiment_id: '7' } } } : accept(request),
  );
  const directory = temporary();
  const first = make({ directory });
  for (const step of [1, 2, 3]) first.logger.log({ loss: step }, step);
  await first.logger.close('failed');
  const second = make({ directory, firstStep: 2 });
  for (const step of [3, 4]) second.logger.log({ loss: step }, step);
  await second.logger.close('finished');
  expect(server.to(/experiments\/create/)).toHaveLength(0);
  expect(server.to(/runs\/create/)).toHaveLength(1);
  expect(server.to(/runs\/update/).map(({ body }) => body.status)).toEqual(['FAILED', 'RUNNING', 'FINISHED']);
  expect(metrics().map(({ step }: { step: number }) => step)).toEqual([1, 2, 3, 4]);
  expect(server.to(/log-batch/).filter(({ body }) => body.params)).toHaveLength(1);
});

test('a session that goes back with another configuration is another run, and says so; the same one, or one that goes on, is not', async () => {
  server = await serve((request, before) =>
    request.path === `${API}/runs/create`
      ? { json: { run: { info: { run_id: `r${before}` } } } }
      : accept(request),
  );
  const directory = temporary();
  const session = async (
    firstStep: number,
    lr: number,
    steps: number[],
    resume?: string,
  ): Promise<string[]> => {
    const { run, logger } = make({ directory, firstStep, record: { optim: { lr } } });
    if (resume) Object.assign(run.record, { trainer: { ...run.config.trainer, resume_from_path: resume } });
    for (const step of steps) logger.log({ loss: lr }, step);
    await logger.close('finished');
    return run.said;
  };
  const sent = (): [string, number][] =>
    server
      .to(/log-batch/)
      .flatMap(({ body }) =>
        (body.metrics ?? []).map(({ step }: { step: number }): [string, number] => [body.run_id, step]),
      );
  await session(0, 1, [1, 2, 3]);
  // Back with the same, from a path.
  await session(1, 1, [2, 3, 4], 'somewhere');
  // On with another.
  await session(4, 2, [5, 6]);
  expect(new Set(sent().map(([run]) => run)).size).toBe(1);
  expect(sent().map(([, step]) => step)).toEqual([1, 2, 3, 4, 5, 6]);
  // Back with another.
  const said = await session(4, 3, [5, 6, 7]);
  expect(said[0]).toMatch(
    /^mlflow: the configuration is another one than that of run \w+, which has steps up to 6 of which those after 4 come again: they go to a new run$/,
  );
  expect(new Set(sent().map(([run]) => run)).size).toBe(2);
  expect(
    sent()
      .slice(6)
      .map(([, step]) => step),
  ).toEqual([5, 6, 7]);
  // And on with that one.
  expect(await session(6, 3, [7, 8])).toEqual([expect.stringMatching(/, which has the steps up to 7$/)]);
  expect(new Set(sent().map(([run]) => run)).size).toBe(2);
});

test('a run that was deleted on the server is made again', async () => {
  server = await serve((request) =>
    request.path.endsWith('/runs/update') && request.body.status === 'RUNNING' ? MISSING : accept(request),
  );
  const directory = temporary();
  await make({ directory }).logger.close('finished');
  const { run, logger } = make({ directory, firstStep: 2 });
  logger.log({ loss: 3 }, 3);
  await logger.close('finished');
  expect(server.to(/runs\/create/)).toHaveLength(2);
  expect(metrics()).toHaveLength(1);
  expect(run.warned).toEqual([]);
});

test('errors of the server make no second run and lose nothing', async () => {
  let failed = 0;
  server = await serve((request, before) => {
    if (before === 0 && /create|log-batch|update/.test(request.path)) {
      failed += 1;
      return { status: 503, text: 'busy' };
    }
    return accept(request);
  });
  const { run, logger } = make();
  logger.log({ loss: 1 }, 1);
  await logger.close('finished');
  expect(failed).toBe(4);
  // Of runs/create only the second one was answered; what follows it did not repeat it.
  expect(server.to(/runs\/create/)).toHaveLength(2);
  expect(metrics().map(({ key }: { key: string }) => key)).toEqual(['loss']);
  expect(run.warned).toEqual([
    expect.stringMatching(/^mlflow failed, the run goes on .* answered 503 busy$/),
  ]);
});

test('a configuration that is refused does not keep the metrics back', async () => {
  server = await serve((request) =>
    request.body?.params ? { status: 400, text: 'too long' } : accept(request),
  );
  const { run, logger } = make();
  logger.log({ loss: 1 }, 1);
  await logger.close('finished');
  expect(metrics()).toHaveLength(1);
  expect(run.warned).toEqual([expect.stringMatching(/the configuration was not taken: .*too long/)]);
});

test('a metric that is refused does not keep the others back', async () => {
  const bad = ['odd name', 'm40'];
  server = await serve((request) => {
    const found = request.body?.metrics?.find(({ key }: { key: string }) => bad.includes(key));
    return found ? { status: 400, text: `Invalid metric name: '${found.key}'` } : accept(request);
  });
  const { run, logger } = make();
  const all = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`m${i}`, i]));
  for (const step of [1, 2]) logger.log({ ...all, 'odd name': step }, step);
  logger.log({ ...all, 'odd name': 3 }, 3);
  await logger.close('finished');
  const taken = server
    .to(/log-batch/)
    .filter(({ body }) => !body.metrics?.some(({ key }: { key: string }) => bad.includes(key)))
    .flatMap(({ body }) => body.metrics ?? []);
  const points = (taken as { key: string; step: number }[]).map(({ key, step }) => `${key} ${step}`);
  const expected = [1, 2, 3].flatMap((step) => Object.keys(all).map((key) => `${key} ${step}`));
  expect(points.sort()).toEqual(expected.filter((point) => !point.startsWith('m40 ')).sort());
  expect(run.warned.sort()).toEqual([
    expect.stringMatching(/^mlflow: the server refuses the metric 'm40'.*Invalid metric name: 'm40'/),
    expect.stringMatching(/^mlflow: the server refuses the metric 'odd name'/),
  ]);
});

test('where every metric is refused, it is not for their names', async () => {
  server = await serve((request) =>
    request.body?.metrics ? { status: 400, text: 'run is over' } : accept(request),
  );
  const { run, logger } = make();
  logger.log(Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`m${i}`, i])), 1);
  await logger.close('finished');
  expect(server.to(/log-batch/).length).toBeLessThan(40);
  expect(run.warned).toEqual([
    expect.stringMatching(/^mlflow failed, the run goes on .*run is over/),
    expect.stringMatching(/100 of 100 points were not sent/),
  ]);
});

test('a wrong password is not shown, nor one in the address', async () => {
  server = await serve(({ headers }) => ({ status: 403, text: `no: ${headers.authorization} pa55word` }));
  const uri = server.url.replace('//', '//ada:pa55word@');
  const { run, logger } = make({ environment: { MLFLOW_TRACKING_URI: uri } });
  logger.log({ loss: 1 }, 1);
  await logger.close('finished');
  const basic = Buffer.from('ada:pa55word').toString('base64');
  expect(server.requests[0]?.headers.authorization).toBe(`Basic ${basic}`);
  const told = [...run.warned, ...run.said].join('\n');
  expect(told).toContain('check MLFLOW_TRACKING_TOKEN');
  expect(told).toContain('1 of 1 points were not sent');
  expect(told).not.toContain('pa55word');
  expect(told).not.toContain(basic);
});

test('a token that no header can hold is not shown', async () => {
  server = await serve(accept);
  const { run, logger } = make({
    logging: { flush_timeout: 0.05 },
    environment: { MLFLOW_TRACKING_TOKEN: 'to\nken-456' },
  });
  logger.log({ loss: 1 }, 1);
  await logger.close('finished');
  expect(run.warned[0]).toMatch(/^mlflow failed/);
  expect(run.warned.join()).not.toContain('ken-456');
});

test('a server that never answers holds up neither the steps nor the end', async () => {
  server = await serve(() => undefined);
  const { run, logger } = make({ logging: { request_timeout: 60, flush_timeout: 0.2 } });
  for (let step = 1; step <= 50; step++) logger.log({ a: 1, b: step }, step);
  await logger.close('finished');
  expect(run.warned.at(-1)).toContain('mlflow: 100 of 100 points were not sent');
});

test('it needs an address', async () => {
  server = await serve(accept);
  expect(() => make({ environment: { MLFLOW_TRACKING_URI: '' } })).toThrow(/MLFLOW_TRACKING_URI is not set/);
  expect(() => make({ environment: { MLFLOW_TRACKING_URI: 'sqlite:///x.db' } })).toThrow(
    /expected a URL.*sqlite/,
  );
});

test('names that MLflow takes', () => {
  expect(mlflowKey('val-core/openai/gsm8k/acc/mean@4')).toBe('val-core/openai/gsm8k/acc/mean_at_4');
  expect(mlflowKey('/a//b(c):d/')).toBe('a/b_c__d');
  expect(mlflowKey('x'.repeat(300))).toHaveLength(250);
});

test('the configuration, flat', () => {
  expect(flatParams({ a: { b: 1, c: null, d: [1, 2], e: {} }, f: 'x'.repeat(7000) })).toEqual([
    { key: 'a/b', value: '1' },
    { key: 'a/c', value: 'null' },
    { key: 'a/d', value: '[1,2]' },
    { key: 'f', value: 'x'.repeat(6000) },
  ]);
});
