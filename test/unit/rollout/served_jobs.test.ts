import { checkRequest } from '../../../ts/rollout/check_request';
import type { InferenceServer } from '../../../ts/rollout/remote/inference_server';
import { jobOf, serveJob } from '../../../ts/rollout/remote/job';
import { type Member, memberOf } from '../../../ts/rollout/remote/members';
import { BrokenAnswer } from '../../../ts/rollout/remote/part_check';
import { OtherWeights } from '../../../ts/rollout/remote/server_client';
import type { ServerPart, ServerProtocol } from '../../../ts/rollout/remote/server_protocol';
import { request } from '../../helpers/counting_servers';

// What one server makes of one request, part by part.

const token = (id: number, more: Partial<ServerPart> = {}): ServerPart => ({
  tokens: [id],
  logProbs: [-1],
  ...more,
});

function served(
  parts: (handle: { abort(): void }) => AsyncIterable<ServerPart>,
  member: Partial<Member> = {},
  maxNewTokens = 2,
) {
  const given = request(10, maxNewTokens);
  const sampling = checkRequest(given, { vocabSize: 1000, maxTokens: 100, eosTokenIds: [999] });
  const job = jobOf(given, sampling);
  const told: string[] = [];
  const protocol = {
    name: 'vllm',
    takes: () => true,
    generate: () => parts(job.handle),
    abort: async (_: unknown, id: string) => void told.push(id),
  } as unknown as ServerProtocol;
  const server = { client: { url: 'http://it' } } as unknown as InferenceServer;
  const done = serveJob(job, { protocol, vocabSize: 1000 }, { ...memberOf(server, 0), ...member }, () => {});
  return { job, done, told };
}

test.each<[string, Partial<Member>, boolean]>([
  ['has those that it was given', { version: 4, given: true }, true],
  ['is just getting others', { version: 3, given: true, loading: true }, true],
  ['was given none', { version: 0 }, true],
  ['has others', { version: 3, given: true }, false],
])('tokens of the weights 4 of a server that %s', async (_, member, taken) => {
  const { job, done } = served(async function* () {
    yield token(11, { endVersion: 4 });
    yield token(12, { endVersion: 4, finish: 'length' });
  }, member);
  if (!taken) {
    await expect(done).rejects.toThrow(OtherWeights);
    // It may begin again elsewhere.
    expect([job.handle.ended, job.handle.tokens]).toEqual([false, []]);
    return;
  }
  await done;
  const { tokens, versions } = await job.handle.result;
  expect([...tokens]).toEqual([11, 12]);
  expect(versions.at(-1)).toMatchObject({ version: 4, end: 2 });
});

test('the first word of an end counts, and tokens behind it are an error', async () => {
  const { job, done } = served(async function* () {
    yield token(11, { finish: 'stop' });
    yield { tokens: [], logProbs: [], finish: 'length', cachedTokens: 1 };
  });
  await done;
  expect(await job.handle.result).toMatchObject({ finishReason: 'stop', cachedTokens: 1 });
  const more = served(async function* () {
    yield token(11, { finish: 'stop' });
    yield token(12);
  });
  await expect(more.done).rejects.toThrow(BrokenAnswer);
});

test('a server is told of a request that was given up, and of no other', async () => {
  const { job, done, told } = served(async function* (handle) {
    yield token(11);
    handle.abort();
    yield token(12);
  });
  await done;
  expect(told).toHaveLength(1);
  expect(await job.handle.result).toMatchObject({ finishReason: 'abort', tokens: Int32Array.of(11) });
  const whole = served(async function* () {
    yield token(11);
    yield token(12, { finish: 'length' });
  });
  await whole.done;
  expect(whole.told).toEqual([]);
});
