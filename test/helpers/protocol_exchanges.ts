// A client of a server whose answers are given, and what a protocol makes of them.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { checkRequest } from '../../ts/rollout/check_request';
import { ServerClient } from '../../ts/rollout/remote/server_client';
import type { EngineLimits, ServerPart, ServerProtocol } from '../../ts/rollout/remote/server_protocol';
import type { RolloutRequest, SamplingParams } from '../../ts/rollout/request';
import { FakeInferenceServer, type Respond } from './inference_server';

/** With real servers, or of their shapes: see the sources in the file. */
export const EXCHANGES = JSON.parse(
  readFileSync(resolve(__dirname, '../fixtures/rollout/exchanges.json'), 'utf8'),
);
/** A server on a CPU. */
export const LIMITS: EngineLimits = {
  sequences: 1024,
  stepTokens: 8192,
  memoryShare: null,
  chunkedPrefill: true,
  prefixCaching: true,
};
export const model = { vocabSize: 300, maxTokens: 64, eosTokenIds: [2] };

const opened: { kill(): Promise<void> }[] = [];
afterEach(async () => {
  for (const one of opened.splice(0)) await one.kill();
});
export async function start(respond: Respond): Promise<[FakeInferenceServer, ServerClient]> {
  const server = await FakeInferenceServer.start(respond);
  const client = new ServerClient(server.url, 'key');
  opened.push(server, { kill: async () => client.close() });
  return [server, client];
}

export async function generate(
  protocol: ServerProtocol,
  client: ServerClient,
  sampling: Partial<SamplingParams>,
  request: Partial<RolloutRequest> = {},
): Promise<ServerPart[]> {
  const promptIds = Array.from(request.promptIds ?? [3, 4, 12, 5]);
  const complete = checkRequest({ promptIds, sampling: { maxNewTokens: 4, ...sampling } }, model);
  const parts: ServerPart[] = [];
  const asked = {
    id: 'b',
    promptIds,
    sampling: complete,
    grammar: request.grammar ?? null,
    cacheSalt: null,
    priority: request.priority ?? 0,
  };
  for await (const part of protocol.generate(client, asked, new AbortController().signal)) parts.push(part);
  return parts;
}
