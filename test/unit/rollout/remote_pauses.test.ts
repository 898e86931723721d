import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { TgiProtocol } from '../../../ts/rollout/remote/tgi';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import {
  counting,
  follow,
  gate,
  generations,
  never,
  request,
  rolloutsOverServers,
  until,
  upwards,
} from '../../helpers/counting_servers';

const servers = rolloutsOverServers();
const weights = (version: number) => ({ kind: 'directory', path: `/w/${version}` }) as const;

test('keep: requests stand still, through new weights as well, and go on with these', async () => {
  const log: string[] = [];
  const { opened, open } = gate();
  const rollout = await servers.connect([await servers.fake({ stand: { after: 3, until: opened }, log })]);
  await rollout.updateWeights(weights(1), 1);
  log.length = 0;
  const handle = rollout.submit(request(10, 60));
  const count = follow(handle);
  await until('begun response', () => count() === 3, count);
  await rollout.pause('keep');
  open();
  await rollout.updateWeights(weights(2), 2);
  const late = rollout.submit(request(20, 3));
  expect(await rollout.stats()).toMatchObject({ running: 1, waiting: 1 });
  await rollout.resume();
  const { tokens, versions } = await handle.result;
  expect([...tokens]).toEqual(upwards(10, 60));
  expect(versions).toEqual([
    { version: 1, start: 0, end: 3 },
    { version: 2, start: 3, end: 60 },
  ]);
  expect([...(await late.result).tokens]).toEqual(upwards(20, 3));
  const still = log.slice(log.indexOf('/pause?mode=keep'), log.indexOf('/resume'));
  expect(still).toEqual([
    '/pause?mode=keep',
    '/pause?mode=keep',
    '/collective_rpc',
    '/update_weight_version',
    '/reset_prefix_cache?reset_running_requests=true',
  ]);
  expect(log.filter((entry) => entry === '/resume')).toHaveLength(1);
});

test('an update goes on with what it found: running, or standing still', async () => {
  const server = await servers.start(() => ({ success: true, message: '', num_paused_requests: 0 }));
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  const paths = (): string[] => server.calls.splice(0).map(({ path }) => path);
  paths();
  const update = ['/pause_generation', '/update_weights_from_disk'];
  await rollout.updateWeights(weights(1), 1);
  expect(paths()).toEqual([...update, '/continue_generation']);
  await rollout.pause('keep');
  expect(paths()).toEqual(['/pause_generation']);
  await rollout.updateWeights(weights(2), 2);
  expect(paths()).toEqual(update);
  await rollout.resume();
  expect(paths()).toEqual(['/continue_generation']);
});

test('weights that a server refuses are an error, and requests go on', async () => {
  const server = await servers.start(({ path }, response) => {
    if (path !== '/collective_rpc') return { data: [] };
    response.statusCode = 400;
    return { error: { message: 'no such file' } };
  });
  const rollout = await servers.connect([server], {}, new VllmProtocol());
  await expect(rollout.updateWeights(weights(1), 1)).rejects.toThrow(/no such file/);
  expect(server.paths().slice(-3)).toEqual(['/pause?mode=keep', '/collective_rpc', '/resume']);
});

test('a server that refuses to go on is an error, and what was held back is asked of it', async () => {
  const rest = counting();
  const server = await servers.start((call, response) => {
    const answer = rest(call, response);
    if (call.path !== '/resume') return answer;
    response.statusCode = 400;
    return { error: { message: 'not now' } };
  });
  const rollout = await servers.connect([server]);
  await rollout.pause('keep');
  const held = rollout.submit(request(10, 3));
  await expect(rollout.resume()).rejects.toThrow(/not now/);
  expect([...(await held.result).tokens]).toEqual(upwards(10, 3));
});

test('resume while new weights are on their way: nothing goes on before they are there', async () => {
  const { opened, open } = gate();
  const server = await servers.start(async ({ path }) => {
    if (path === '/update_weights_from_disk') await opened;
    return { success: true };
  });
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  await rollout.pause('keep');
  const update = rollout.updateWeights(weights(1), 1);
  await until(
    'weights on their way',
    () => server.paths().includes('/update_weights_from_disk'),
    server.paths,
  );
  await rollout.resume();
  expect(server.paths()).not.toContain('/continue_generation');
  open();
  await update;
  expect(server.paths().at(-1)).toBe('/continue_generation');
});

test('a server that is started again for new weights gets nothing in a pause', async () => {
  class StartedAgain extends VllmProtocol {
    override readonly reloads = false;
  }
  const rollout = await servers.connect([await servers.fake()], {}, new StartedAgain());
  await rollout.pause('wait');
  const handle = rollout.submit(request(10));
  await rollout.updateWeights(weights(1), 1);
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 1 });
  await rollout.resume();
  expect([...(await handle.result).tokens]).toEqual(upwards(10, 5));
});

test('a pause that a server refuses is none', async () => {
  const answer = counting();
  const server = await servers.start((call, response) => {
    if (call.path !== '/pause?mode=keep') return answer(call, response);
    response.statusCode = 404;
    return { detail: 'Not Found' };
  });
  const rollout = await servers.connect([server]);
  await expect(rollout.pause('keep')).rejects.toThrow(/answered 404/);
  expect([...(await rollout.submit(request(10)).result).tokens]).toEqual(upwards(10, 5));
});

test('requests that cannot stand still are not asked to', async () => {
  const tokenizer = { encode: () => new Int32Array(), decode: () => '' };
  const server = await servers.start(() => ({}));
  const rollout = await servers.connect([server], {}, new TgiProtocol(tokenizer, [999]));
  await expect(rollout.pause('keep')).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('requests of tgi cannot stand still'),
  });
  rollout.submit(request(10)).abort();
  expect(await rollout.stats()).toMatchObject({ running: 0 });
});

test('wait: what was asked for before runs to its end, what comes later does not begin', async () => {
  const server = await servers.fake({ pace: 1 });
  const rollout = await servers.connect([server], { maxConcurrency: 1 });
  const before = [10, 20].map((first) => rollout.submit(request(first)));
  const later: ReturnType<typeof rollout.submit>[] = [];
  const paused = rollout.pause('wait');
  // One that comes for each that ends would keep it from ever being paused.
  for (const { result } of before) void result.then(() => later.push(rollout.submit(request(30))));
  await paused;
  for (const [i, { result }] of before.entries())
    expect([...(await result).tokens]).toEqual(upwards(10 * (i + 1), 5));
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 2 });
  expect(generations(server)).toHaveLength(2);
  await rollout.resume();
  for (const { result } of later) expect([...(await result).tokens]).toEqual(upwards(30, 5));
});

test('wait: a request whose server is lost runs to its end on the next', async () => {
  const server = await servers.fake({ stand: { after: 2, until: never } });
  const rollout = await servers.connect([server]);
  const handle = rollout.submit(request(10));
  const count = follow(handle);
  await until('begun response', () => count() === 2, count);
  const paused = rollout.pause('wait');
  await server.kill();
  await servers.fake({}, Number(new URL(server.url).port));
  await paused;
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 0 });
  expect([...(await handle.result).tokens]).toEqual(upwards(10, 5));
});

test('wait: nobody waits for requests that are aborted before they begin, or when it is over', async () => {
  const server = await servers.fake({ stand: { after: 2, until: never } });
  const rollout = await servers.connect([server], { maxConcurrency: 1 });
  const [running, waiting] = [rollout.submit(request(10)), rollout.submit(request(20))];
  const count = follow(running);
  await until('begun response', () => count() === 2, count);
  const paused = rollout.pause('wait');
  running.abort();
  waiting.abort();
  await paused;
  await rollout.resume();
  const standing = follow(rollout.submit(request(10)));
  await until('begun response', () => standing() === 2, standing);
  const again = rollout.pause('wait');
  await rollout.resume();
  await again;
});

test('wait after keep: what stood still runs to its end', async () => {
  const rollout = await servers.connect([await servers.fake({ pace: 1 })]);
  const handle = rollout.submit(request(10, 30));
  const count = follow(handle);
  await until('begun response', () => count() > 0, count);
  await rollout.pause('keep');
  await rollout.pause('wait');
  expect([...(await handle.result).tokens]).toEqual(upwards(10, 30));
});

test('abort: all end with what they have, and what comes meanwhile waits', async () => {
  const server = await servers.fake({ stand: { after: 2, until: never } });
  const rollout = await servers.connect([server], { maxConcurrency: 1 });
  const [running, waiting] = [rollout.submit(request(10)), rollout.submit(request(20))];
  const count = follow(running);
  await until('begun response', () => count() === 2, count);
  const paused = rollout.pause('abort');
  rollout.submit(request(30));
  await paused;
  const ended = await Promise.all([running, waiting].map(({ result }) => result));
  expect(ended.map(({ tokens, finishReason }) => [[...tokens], finishReason])).toEqual([
    [[11, 12], 'abort'],
    [[], 'abort'],
  ]);
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 1 });
  expect(generations(server)).toHaveLength(1);
});

test('a server hears of a pause and of its end one after the other, also where nobody has waited for the first', async () => {
  const done: string[] = [];
  const { opened, open } = gate();
  const server = await servers.start(async ({ path }) => {
    if (path === '/pause?mode=keep') await opened;
    done.push(path);
    return { data: [] };
  });
  const rollout = await servers.connect([server], {}, new VllmProtocol());
  done.length = 0;
  const paused = rollout.pause('keep');
  await until('pause', () => server.paths().includes('/pause?mode=keep'), server.paths);
  const resumed = rollout.resume();
  setTimeout(open, 50);
  await Promise.all([paused, resumed]);
  expect(done).toEqual(['/pause?mode=keep', '/resume']);
});
