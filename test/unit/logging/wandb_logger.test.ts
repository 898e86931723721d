import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createLoggers } from '../../../ts/logging/loggers';
import { WandbLogger } from '../../../ts/logging/wandb_logger';
import {
  loggedRun,
  loggingConfig,
  type Recorded,
  type Reply,
  serve,
  type TestServer,
  temporary,
} from '../../helpers/logged_run';

const KEY = 'secret-key-of-forty-characters-0123456789';
const bucket = (lines = 0, summaryMetrics: string | null = null): Reply => ({
  json: {
    data: {
      upsertBucket: {
        bucket: {
          name: 'x',
          historyLineCount: lines,
          summaryMetrics,
          project: { name: 'sums', entity: { name: 'ada' } },
        },
      },
    },
  },
});
const accept = (request: Recorded): Reply =>
  request.path === '/graphql' ? bucket() : { json: { limits: {} } };

let server: TestServer;
afterEach(() => server.close());

const make = (options: Parameters<typeof loggedRun>[0] = {}) => {
  const run = loggedRun({
    ...options,
    environment: {
      WANDB_API_KEY: `${KEY}\n`,
      WANDB_BASE_URL: server.url,
      WANDB_ENTITY: 'ada',
      ...options.environment,
    },
  });
  return { run, logger: new WandbLogger(run) };
};
const history = () =>
  server.to(/file_stream/).flatMap(({ body }) => {
    const chunk = body.files?.['wandb-history.jsonl'] as { offset: number; content: string[] } | undefined;
    return (chunk?.content ?? []).map((line, i) => ({ at: (chunk?.offset ?? 0) + i, ...JSON.parse(line) }));
  });

test('makes the run, sends a line per step and the summary, and ends the run', async () => {
  server = await serve(accept);
  const { run, logger } = make();
  logger.log({ 'actor/pg_loss': -0.5, 'actor/entropy': 2 }, 1);
  logger.log({ 'timing_s/save_checkpoint': 3 }, 1);
  logger.log({ 'actor/pg_loss': NaN, 'actor/kl_loss': -Infinity }, 2);
  await logger.close('finished');

  const [upsert] = server.to(/graphql/);
  expect(upsert?.headers.authorization).toBe(`Basic ${Buffer.from(`api:${KEY}`).toString('base64')}`);
  expect(upsert?.body.query).toMatch(/^mutation UpsertBucket/);
  const { variables } = upsert?.body ?? {};
  expect(variables).toMatchObject({ project: 'sums', entity: 'ada', displayName: 'grpo-1' });
  expect(variables.name).toMatch(/^[0-9a-z]{8}$/);
  expect(JSON.parse(variables.config).trainer).toEqual({ desc: null, value: run.config.trainer });

  expect(server.to(/file_stream/)[0]?.path).toBe(`/files/ada/sums/${variables.name}/file_stream`);
  const lines = history();
  expect(lines).toMatchObject([
    { at: 0, _step: 1, 'actor/pg_loss': -0.5, 'actor/entropy': 2, 'timing_s/save_checkpoint': 3 },
    { at: 1, _step: 2, 'actor/pg_loss': 'NaN', 'actor/kl_loss': '-Infinity' },
  ]);
  for (const line of lines) {
    expect(Math.abs(line._timestamp - Date.now() / 1000)).toBeLessThan(600);
    expect(line._runtime).toBeGreaterThanOrEqual(0);
  }
  const posts = server.to(/file_stream/);
  const summary = posts.findLast(({ body }) => body.files)?.body.files['wandb-summary.json'];
  expect(JSON.parse(summary.content[0])).toMatchObject({
    _step: 2,
    'actor/entropy': 2,
    'actor/pg_loss': 'NaN',
  });
  expect(posts.at(-1)?.body).toEqual({ complete: true, exitcode: 0 });

  expect(run.said).toEqual([`wandb: ${server.url}/ada/sums/runs/${variables.name}`]);
  expect(run.warned).toEqual([]);
  expect(JSON.parse(readFileSync(join(run.directory, 'wandb.json'), 'utf8'))).toMatchObject({
    runId: variables.name,
    lastStep: 2,
  });
});

test('a resumed run goes on with the same id, behind the lines that the server has', async () => {
  server = await serve((request, before) =>
    request.path === '/graphql' && before > 0 ? bucket(3) : accept(request),
  );
  const directory = temporary();
  const first = make({ directory });
  for (const step of [1, 2, 3]) first.logger.log({ loss: step }, step);
  await first.logger.close('failed');
  expect(server.requests.at(-1)?.body).toEqual({ complete: true, exitcode: 1 });

  const second = make({ directory, firstStep: 2 });
  for (const step of [3, 4]) second.logger.log({ loss: step }, step);
  await second.logger.close('finished');
  const [before, after] = server.to(/graphql/).map(({ body }) => body.variables.name);
  expect(after).toBe(before);
  expect(history().map(({ at, _step }) => [at, _step])).toEqual([
    [0, 1],
    [1, 2],
    [2, 3],
    [3, 4],
  ]);
  expect(second.run.said).toEqual([expect.stringMatching(/, which has the steps up to 3$/)]);

  // From the beginning, or in another project, it is another run.
  await make({ directory }).logger.close('finished');
  await make({ directory, firstStep: 4, environment: { WANDB_PROJECT: 'other' } }).logger.close('finished');
  const names = server.to(/graphql/).map(({ body }) => body.variables.name);
  expect(new Set(names.slice(1)).size).toBe(3);
  expect(server.to(/graphql/).at(-1)?.body.variables.project).toBe('other');
});

test.each([
  [
    'what the server has',
    '{"loss":0.1,"val-core/acc":0.7,"table":{"_type":"file"}}',
    { 'val-core/acc': 0.7, table: { _type: 'file' } },
  ],
  ['nothing', null, {}],
  ['no object', '[1', {}],
])('the summary of a resumed run keeps what this session has not logged: %s', async (_, known, kept) => {
  server = await serve((request, before) =>
    request.path === '/graphql' && before > 0 ? bucket(1, known) : accept(request),
  );
  const directory = temporary();
  const first = make({ directory });
  first.logger.log({ loss: 0.1, 'val-core/acc': 0.7 }, 1);
  await first.logger.close('interrupted');
  const second = make({ directory, firstStep: 1 });
  second.logger.log({ loss: 0.05 }, 2);
  await second.logger.close('finished');
  expect(server.to(/graphql/)[0]?.body.query).toContain('summaryMetrics');
  const last = server.to(/file_stream/).findLast(({ body }) => body.files)?.body.files['wandb-summary.json'];
  const { _step, _runtime, _timestamp, ...values } = JSON.parse(last.content[0]);
  expect([_step, values]).toEqual([2, { loss: 0.05, ...kept }]);
});

test('a session that goes back with another configuration is another run, and says so; the same one, or one that goes on, is not', async () => {
  server = await serve(accept);
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
      .to(/file_stream/)
      .flatMap(({ path, body }) =>
        (body.files?.['wandb-history.jsonl']?.content ?? []).map((line: string): [string, number] => [
          path,
          JSON.parse(line)._step,
        ]),
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
    /^wandb: the configuration is another one than that of run \w+, which has steps up to 6 of which those after 4 come again: they go to a new run$/,
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

test('errors of the server are tried again: no line is lost or doubled', async () => {
  server = await serve((request, before) => (before === 0 ? { status: 500, text: 'oops' } : accept(request)));
  const { run, logger } = make();
  for (const step of [1, 2]) logger.log({ loss: step }, step);
  await logger.close('finished');
  const names = server.to(/graphql/).map(({ body }) => body.variables.name);
  expect(names).toHaveLength(2);
  expect(new Set(names).size).toBe(1);
  // The first request of the stream failed; the second holds the same at the same place.
  expect(history().map(({ at, _step }) => [at, _step])).toEqual([
    [0, 1],
    [1, 2],
    [0, 1],
    [1, 2],
  ]);
  expect(run.warned).toEqual([expect.stringMatching(/^wandb failed, the run goes on .* answered 500 oops$/)]);
});

test('a wrong key: one warning that names the variable and not the key, and the count of what is missing', async () => {
  server = await serve(({ headers }) => ({
    status: 401,
    text: `bad credentials ${KEY} ${headers.authorization}`,
  }));
  const { run, logger } = make();
  logger.log({ a: 1, b: 2 }, 1);
  await logger.close('finished');
  expect(server.requests).toHaveLength(1);
  expect(run.warned).toEqual([
    expect.stringMatching(/answered 401 bad credentials \*\*\* Basic \*\*\*: check WANDB_API_KEY$/),
    expect.stringContaining('wandb: 2 of 2 points were not sent'),
  ]);
});

test('what GraphQL refuses is said', async () => {
  server = await serve(() => ({
    json: { data: { upsertBucket: null }, errors: [{ message: 'entity not found' }] },
  }));
  const { run, logger } = make();
  logger.log({ a: 1 }, 1);
  await logger.close('finished');
  expect(run.warned[0]).toContain('cannot make a run in project sums: entity not found');
});

test('a server that never answers holds up neither the steps nor the end', async () => {
  server = await serve(() => undefined);
  const { run, logger } = make({ logging: { request_timeout: 60, flush_timeout: 0.2 } });
  for (let step = 1; step <= 50; step++) logger.log({ a: 1, b: step }, step);
  await logger.close('finished');
  expect(run.warned.at(-1)).toContain('100 of 100 points were not sent');
});

test('no server at all', async () => {
  server = await serve(accept);
  const { url } = server;
  await server.close();
  const { run, logger } = make({ logging: { flush_timeout: 0.1 }, environment: { WANDB_BASE_URL: url } });
  logger.log({ a: 1 }, 1);
  await logger.close('finished');
  expect(run.warned).toEqual([
    expect.stringMatching(/wandb failed, the run goes on .*ECONNREFUSED/),
    expect.stringContaining('1 of 1 points were not sent'),
  ]);
});

test.each([
  [{}, {}, /WANDB_API_KEY is not set/],
  [{ WANDB_API_KEY: KEY, WANDB_MODE: 'disabled' }, {}, /WANDB_MODE is disabled$/],
  [{ WANDB_MODE: 'offline' }, {}, /WANDB_MODE is offline, and runs that are sent later are not available/],
  [
    { WANDB_API_KEY: KEY, WANDB_MODE: 'of' },
    {},
    /WANDB_MODE: expected online, offline or disabled, got "of"/,
  ],
  [{ WANDB_API_KEY: KEY }, { wandb: { base_url: 'user:pw@host' } }, /expected a URL that begins with http/],
])('what cannot begin is off, with a warning: %#', async (environment, logging, expected) => {
  server = await serve(accept);
  const warned: string[] = [];
  const config = loggingConfig({ logger: ['wandb'], logging });
  const loggers = createLoggers(config, temporary(), { environment, warn: (line) => warned.push(line) });
  await loggers.log({ a: 1 }, 1);
  await loggers.close();
  expect(warned).toEqual([expect.stringMatching(expected)]);
  expect(warned[0]).toMatch(/^warning: \[logging\] wandb is off, the run goes on without it/);
});

test('a long step is not taken for a dead run: signs of life, while there is nothing else to send', async () => {
  server = await serve(accept);
  const keep = [
    'nextTick',
    'setImmediate',
    'clearImmediate',
    'setTimeout',
    'clearTimeout',
    'queueMicrotask',
  ] as const;
  jest.useFakeTimers({ doNotFake: [...keep, 'Date', 'performance', 'hrtime'] });
  try {
    const { logger } = make();
    const turn = (): Promise<void> => new Promise((done) => setTimeout(done, 2));
    logger.log({ a: 1 }, 1);
    logger.log({ a: 2 }, 2);
    while (server.to(/file_stream/).length < 1) await turn();
    // The answer has to arrive before the logger counts as idle.
    while (server.to(/file_stream/).length < 2) {
      await turn();
      jest.advanceTimersByTime(30_000);
    }
    await logger.close('finished');
    const bodies = server.to(/file_stream/).map(({ body }) => body);
    expect(bodies[1]).toEqual({});
    expect(bodies.at(-1)).toEqual({ complete: true, exitcode: 0 });
    expect(history().map(({ _step }) => _step)).toEqual([1, 2]);
  } finally {
    jest.useRealTimers();
  }
});
