import type { ServerProtocol } from '../../../ts/rollout/remote/server_protocol';
import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { TgiProtocol } from '../../../ts/rollout/remote/tgi';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import type { Grammar } from '../../../ts/rollout/request';
import { rolloutsOverServers } from '../../helpers/counting_servers';
import { type Call, sendEvents } from '../../helpers/inference_server';
import { EXCHANGES } from '../../helpers/protocol_exchanges';

// Grammars from submit to what each kind of server is sent.

const tokenizer = {
  encode: (text: string) => Int32Array.from(Buffer.from(text)),
  decode: (ids: ArrayLike<number>) => Buffer.from(Array.from(ids)).toString(),
};
const PROTOCOLS: Record<string, ServerProtocol> = {
  vllm: new VllmProtocol(),
  sglang: new SglangProtocol([999]),
  tgi: new TgiProtocol(tokenizer, [999]),
};
const servers = rolloutsOverServers();

/** Answers any request with the tokens of the recorded exchange. */
async function over(name: string) {
  const { events, answer, info } = EXCHANGES[name];
  const server = await servers.start(({ method }, response) => {
    if (method === 'GET') return info ?? { data: [] };
    if (answer !== undefined) return answer;
    sendEvents(response, events);
    response.end();
    return undefined;
  });
  const rollout = await servers.connect([server], {}, PROTOCOLS[name] as ServerProtocol);
  const submit = (grammar: Grammar) =>
    rollout.submit({ promptIds: [104, 105], sampling: { maxNewTokens: 4 }, grammar });
  return { submit, asked: (): Call[] => server.calls.filter(({ method }) => method === 'POST') };
}

const schema = '{"properties":{"a":{"type":"number"}}}';
const tag = '{"type":"structural_tag","format":{"type":"any_text"}}';

test.each<[string, Grammar, (body: Call['body']) => unknown, unknown]>([
  [
    'vllm',
    { kind: 'json-schema', schema },
    ({ sampling_params: { structured_outputs: of } }) => of,
    { json: schema },
  ],
  [
    'vllm',
    { kind: 'structural-tag', tag },
    ({ sampling_params: { structured_outputs: of } }) => of,
    { structural_tag: tag },
  ],
  ['sglang', { kind: 'json-schema', schema }, ({ sampling_params: { json_schema: of } }) => of, schema],
  ['sglang', { kind: 'structural-tag', tag }, ({ sampling_params: { structural_tag: of } }) => of, tag],
  [
    'tgi',
    { kind: 'json-schema', schema },
    ({ parameters: { grammar: of } }) => of,
    { type: 'json', value: JSON.parse(schema) },
  ],
])('%s is asked for a response of %j', async (name, grammar, pick, expected) => {
  const { submit, asked } = await over(name);
  expect((await submit(grammar).result).tokens.length).toBeGreaterThan(0);
  expect(asked().map(({ body }) => pick(body))).toEqual([expected]);
});

test('what a server has no grammar for is refused at once', async () => {
  const { submit, asked } = await over('tgi');
  expect(() => submit({ kind: 'structural-tag', tag })).toThrow(
    /tgi cannot serve this request: .*structural/,
  );
  expect(asked()).toEqual([]);
});
