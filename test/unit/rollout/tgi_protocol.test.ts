import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { checkRequest } from '../../../ts/rollout/check_request';
import { ServerLost, ServerRefused } from '../../../ts/rollout/remote/server_client';
import { TgiProtocol } from '../../../ts/rollout/remote/tgi';
import { tgiEndTokenIds } from '../../../ts/rollout/remote/tgi_ends';
import type { SamplingParams } from '../../../ts/rollout/request';
import { sendEvents } from '../../helpers/inference_server';
import { EXCHANGES, generate, LIMITS, model, start } from '../../helpers/protocol_exchanges';

describe('TGI', () => {
  const { events, info } = EXCHANGES.tgi;
  const tokenizer = {
    encode: (text: string, special?: boolean) =>
      Int32Array.from([...(special ? [1] : []), ...Buffer.from(text)]),
    decode: (ids: ArrayLike<number>) =>
      Array.from(ids, (id) => (id === 1 ? '<s>' : String.fromCharCode(id))).join(''),
  };
  const tgi = new TgiProtocol(tokenizer, [256]);
  const eos = { stopTokenIds: [256] };

  test('the text that it will tokenise to the ids, and the ids that it made', async () => {
    const [server, client] = await start((_, response) => {
      sendEvents(response, events);
      response.end();
    });
    const parts = await generate(tgi, client, { ...eos, temperature: 0.5 }, { promptIds: [1, 104, 105] });
    expect(parts.flatMap(({ tokens }) => tokens)).toEqual([97, 98, 256]);
    expect(parts.flatMap(({ logProbs }) => logProbs)).toEqual([-1.5, -0.25, -0.5]);
    expect(parts.at(-1)?.finish).toBe('stop');
    expect(server.calls[0]).toMatchObject({
      path: '/generate_stream',
      body: {
        inputs: 'hi',
        parameters: { max_new_tokens: 4, do_sample: true, temperature: 0.5, details: true },
      },
    });
    expect(await tgi.info((await start(() => info))[1])).toEqual({ maxTokens: 64 });
  });

  test('ids that no text gives are refused', async () => {
    const [, client] = await start(() => ({}));
    await expect(generate(tgi, client, eos, { promptIds: [104, 1] })).rejects.toThrow(
      /no text gives these prompt ids/,
    );
  });

  test('the most likely token is asked for without options that would make it draw', async () => {
    const [server, client] = await start((_, response) => {
      sendEvents(response, events);
      response.end();
    });
    const cut = { ...eos, topK: 5, topP: 0.5 };
    for (const temperature of [0, 1])
      await generate(tgi, client, { ...cut, temperature }, { promptIds: [1, 104] });
    const [greedy, drawn] = server.calls.map(({ body }) => body.parameters);
    expect(greedy).toEqual({ max_new_tokens: 4, do_sample: false, details: true });
    expect(drawn).toEqual({ max_new_tokens: 4, do_sample: true, top_k: 5, top_p: 0.5, details: true });
  });

  test('what ends a response there ends it for the caller, or the request is refused', () => {
    const refusal = (stopTokenIds: number[]): string | null =>
      tgi.refusal(checkRequest({ promptIds: [1], sampling: { maxNewTokens: 1, stopTokenIds } }, model), null);
    expect(refusal([256])).toBeNull();
    for (const other of [[], [7], [7, 256]])
      expect(refusal(other)).toMatch(
        /its end tokens \(256\) end a response there, and no others: .* in the list eos_token_id of generation_config.json/,
      );
  });

  test.each<[string, object | null, number[]]>([
    ['a list of generation_config.json', { eos_token_id: [7, 8] }, [7, 8]],
    ['not a single id of it, but the end token of the tokenizer', { eos_token_id: 7 }, [9]],
    ['the end token of the tokenizer', null, [9]],
  ])('its end tokens: %s', (_, generation, expected) => {
    const directory = mkdtempSync(path.join(tmpdir(), 'troupe-tgi-'));
    try {
      const file = path.join(directory, 'generation_config.json');
      if (generation) writeFileSync(file, JSON.stringify(generation));
      expect(tgiEndTokenIds(directory, { eosId: 9 })).toEqual(expected);
      expect(tgiEndTokenIds(directory, { eosId: null })).toEqual(expected[0] === 9 ? [] : expected);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  test('errors in a stream: of the request, and of the server', async () => {
    const { errors } = EXCHANGES.tgi;
    let error: object = errors.validation;
    const [, client] = await start((_, response) => {
      sendEvents(response, [error]);
      response.end();
    });
    const ask = (): Promise<unknown> => generate(tgi, client, eos, { promptIds: [1, 104] });
    await expect(ask()).rejects.toBeInstanceOf(ServerRefused);
    for (error of [errors.overloaded, errors.generation])
      await expect(ask()).rejects.toBeInstanceOf(ServerLost);
  });

  test('a managed server takes as many requests as it is sent', () => {
    const options = {
      model: 'm',
      host: 'h',
      port: 1,
      dtype: 'float32',
      maxTokens: 64,
      seed: 0,
      tensorParallel: 1,
      releases: false,
      limits: LIMITS,
    } as const;
    const { args } = tgi.launch({ ...options, maxConcurrency: 256 });
    expect(args.join(' ')).toContain('--max-concurrent-requests 256');
    expect(args).not.toContain('--num-shard');
    const spread = tgi.launch({ ...options, maxConcurrency: 256, tensorParallel: 2 });
    expect(spread.args.join(' ')).toContain('--num-shard 2');
  });

  test('what it cannot do', () => {
    const refusal = (sampling: Partial<SamplingParams>, schema?: string): string | null =>
      tgi.refusal(
        checkRequest({ promptIds: [1], sampling: { maxNewTokens: 1, ...sampling } }, model),
        schema === undefined ? null : { kind: 'json-schema', schema },
      );
    expect(refusal(eos)).toBeNull();
    expect(refusal({ stopTokenIds: [] })).toMatch(/end tokens/);
    expect(refusal({ ...eos, minP: 0.1 })).toMatch(/min-p/);
    expect(refusal({ ...eos, frequencyPenalty: 1 })).toMatch(/frequency penalty/);
    expect(refusal(eos, '{"properties":{}}')).toBeNull();
    for (const schema of ['{"type":"object"}', 'true', 'no JSON'])
      expect(refusal(eos, schema)).toMatch(/with properties/);
  });
});
