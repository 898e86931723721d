import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import type { TokenSpan } from '../../../ts/rollout/request';
import { gate, rolloutsOverServers, until } from '../../helpers/counting_servers';
import { EXCHANGES } from '../../helpers/protocol_exchanges';

// Which weights made which token of a response that an update passed.

const { sglang } = EXCHANGES;
const servers = rolloutsOverServers();

/** A request that SGLang answers with `answer` after an update from version 3 to 4. */
async function passedBy(answer: object) {
  const { opened, open } = gate();
  const server = await servers.start(async ({ path }) => {
    if (path === '/generate') await opened;
    return path === '/generate' ? answer : { success: true };
  });
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  await rollout.updateWeights({ kind: 'directory', path: '/w/3' }, 3);
  const handle = rollout.submit({ promptIds: [3, 4], sampling: { maxNewTokens: 4 } });
  const paths = (): string[] => server.paths();
  await until('request', () => paths().includes('/generate'), paths);
  await rollout.updateWeights({ kind: 'directory', path: '/w/4' }, 4);
  open();
  const spans: TokenSpan[] = [];
  for await (const span of handle) spans.push(span);
  const { versions } = await handle.result;
  return { versions, spans: spans.map(({ tokens, version }) => [[...tokens], version]) };
}
const withVersion = (version: string): object => ({
  ...sglang.answer,
  meta_info: { ...sglang.answer.meta_info, weight_version: version },
});

const UPDATED_BEFORE_THE_LAST = {
  versions: [
    { version: 3, start: 0, end: 2 },
    { version: 4, start: 2, end: 3 },
  ],
  spans: [
    [[12, 14], 3],
    [[2], 4],
  ],
};

test('a server that knows them says so, and the stream has them too', async () => {
  expect(await passedBy(sglang.answer_with_spans)).toEqual(UPDATED_BEFORE_THE_LAST);
});

test('of one that says only which it ended with, tokens before the last count as of the older weights', async () => {
  expect(await passedBy(withVersion('4'))).toEqual(UPDATED_BEFORE_THE_LAST);
});

test('a response that ended before the update is of the weights before', async () => {
  expect(await passedBy(withVersion('3'))).toEqual({
    versions: [{ version: 3, start: 0, end: 3 }],
    spans: [[[12, 14, 2], 3]],
  });
});
