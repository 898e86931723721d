import { GivenServer } from '../../../ts/rollout/remote/inference_server';
import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import { follow, never, request, rolloutsOverServers, until, upwards } from '../../helpers/counting_servers';
import { EXCHANGES } from '../../helpers/protocol_exchanges';

// Servers that give their memory back while nothing is generated.

const servers = rolloutsOverServers();
const weights = (version: number) => ({ kind: 'directory', path: `/w/${version}` }) as const;
const LOAD = ['/collective_rpc', '/update_weight_version', '/reset_prefix_cache?reset_running_requests=true'];
const WAKE = ['/wake_up?tags=weights', ...LOAD, '/wake_up?tags=kv_cache'];

test('vLLM sleeps until it is asked for something, which it answers with the weights of now', async () => {
  const server = await servers.fake();
  const rollout = await servers.connect([server]);
  await rollout.updateWeights(weights(1), 1);
  server.calls.length = 0;
  await rollout.release();
  expect(server.paths()).toEqual(['/sleep?level=2']);
  const results = await Promise.all([10, 20].map((first) => rollout.submit(request(first)).result));
  expect(results.map(({ tokens, versions }) => [[...tokens], versions])).toEqual(
    [10, 20].map((first) => [upwards(first, 5), [{ version: 1, start: 0, end: 5 }]]),
  );
  expect(server.paths()).toEqual([
    '/sleep?level=2',
    ...WAKE,
    ...['/inference/v1/generate', '/inference/v1/generate'],
  ]);
  const rpc = server.calls.find(({ path }) => path === '/collective_rpc');
  expect(rpc?.body.kwargs).toEqual({ weights_path: '/w/1' });
});

test('new weights wake SGLang, whose requests are gone before it sleeps', async () => {
  const server = await servers.start(({ path }) => EXCHANGES.sglang.controls[path] ?? {});
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  await rollout.updateWeights(weights(1), 1);
  server.calls.length = 0;
  await rollout.release();
  await rollout.updateWeights(weights(2), 2);
  expect(server.calls.map(({ path, body }) => [path, body])).toEqual([
    ['/pause_generation', { mode: 'abort' }],
    ['/release_memory_occupation', { tags: ['kv_cache', 'weights'] }],
    ['/resume_memory_occupation', { tags: ['weights'] }],
    ['/update_weights_from_disk', { model_path: '/w/2', flush_cache: true, weight_version: '2' }],
    ['/resume_memory_occupation', { tags: ['kv_cache'] }],
    ['/continue_generation', {}],
  ]);
  // Awake again: an update is a pause, as before.
  server.calls.length = 0;
  await rollout.updateWeights(weights(3), 3);
  expect(server.paths()).toEqual(['/pause_generation', '/update_weights_from_disk', '/continue_generation']);
});

test('nothing sleeps where requests are, or before there are weights to wake up with', async () => {
  const server = await servers.fake({ stand: { after: 2, until: never } });
  const rollout = await servers.connect([server]);
  await rollout.release();
  await rollout.updateWeights(weights(1), 1);
  const handle = rollout.submit(request(10));
  const count = follow(handle);
  await until('begun response', () => count() === 2, count);
  await rollout.release();
  expect(server.paths()).not.toContain('/sleep?level=2');
  expect(await rollout.stats()).toMatchObject({ running: 1 });
});

test('a server that dies in its sleep is started anew, and not woken', async () => {
  const server = await servers.fake();
  const rollout = await servers.connect([server]);
  await rollout.updateWeights(weights(1), 1);
  await rollout.release();
  await server.kill();
  const { result } = rollout.submit(request(10));
  const lost = (): boolean => servers.said.join().includes('was lost');
  await until('word of the loss', lost, () => servers.said);
  const next = await servers.fake({}, Number(new URL(server.url).port));
  expect([...(await result).tokens]).toEqual(upwards(10, 5));
  expect(next.paths()).toContain('/collective_rpc');
  expect(next.paths()).not.toContain('/wake_up?tags=weights');
  expect(servers.said.join()).toContain('is back after');
});

test('what takes weights when it starts only ends, and is started for the next request', async () => {
  class StartedAgain extends VllmProtocol {
    override readonly reloads = false;
  }
  class Ending extends GivenServer {
    ends = 0;
    readonly startedWith: (string | null)[] = [];
    override ready(directory: string | null, signal: AbortSignal): Promise<void> {
      this.startedWith.push(directory);
      return super.ready(directory, signal);
    }
    override async close(): Promise<void> {
      this.ends++;
    }
  }
  const protocol = new StartedAgain();
  const fake = await servers.fake();
  const server = new Ending(protocol, fake.url, null);
  const rollout = await servers.connect([fake], { servers: [server] }, protocol);
  await rollout.updateWeights(weights(1), 1);
  expect([server.ends, server.startedWith]).toEqual([1, [null, '/w/1']]);
  await rollout.release();
  expect(server.ends).toBe(2);
  expect(server.startedWith).toHaveLength(2);
  expect([...(await rollout.submit(request(10)).result).tokens]).toEqual(upwards(10, 5));
  expect(server.startedWith).toEqual([null, '/w/1', '/w/1']);
});
