// Inference servers in vLLM's protocol whose next token is the last one plus one, so that a response can be told from any of its beginnings, and
// rollouts over them.
import { setTimeout as sleep } from 'node:timers/promises';
import type { RolloutHandle } from '../../ts/rollout/engine';
import { GivenServer } from '../../ts/rollout/remote/inference_server';
import { RemoteRollout, type RemoteRolloutOptions } from '../../ts/rollout/remote/remote_rollout';
import type { ServerProtocol } from '../../ts/rollout/remote/server_protocol';
import { VllmProtocol } from '../../ts/rollout/remote/vllm';
import type { RolloutRequest } from '../../ts/rollout/request';
import { FakeInferenceServer, type Respond, sendEvents } from './inference_server';

export interface Behaviour {
  /** Milliseconds per token. */
  pace?: number;
  /** Breaks off after so many tokens of a response. */
  dieAfter?: number;
  /** Stands still after so many tokens of a response, until it is let go on (or is killed). */
  stand?: { after: number; until: Promise<void> };
  /** Of each prompt, in the cache. */
  cached?: number;
  /** Gets the paths that are asked for and 'token' for each that is made, in order. */
  log?: string[];
}

export const never = new Promise<void>(() => undefined);

/** A promise and what resolves it. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

interface WeightSpan {
  version: string;
  start: number;
  end: number;
}

/** What vLLM answers where it answers, pauses included. */
export function counting(behaviour: Behaviour = {}): Respond {
  let version = 'default';
  let paused = false;
  const controls: Record<string, (body: { new_version: string }) => unknown> = {
    '/v1/models': () => ({ object: 'list', data: [{ id: 'policy', max_model_len: 100 }] }),
    '/pause?mode=keep': () => {
      paused = true;
      return { status: 'paused' };
    },
    '/resume': () => {
      paused = false;
      return { status: 'resumed' };
    },
    '/collective_rpc': () => ({ results: [null] }),
    '/update_weight_version': ({ new_version }) => {
      version = new_version;
      return { success: true, new_version };
    },
  };
  return async ({ path, body }, response) => {
    behaviour.log?.push(path);
    const control = controls[path];
    if (control !== undefined) return control(body);
    if (path !== '/inference/v1/generate') {
      response.end();
      return undefined;
    }
    const { token_ids: prompt, sampling_params: params } = body;
    const last = prompt.at(-1) as number;
    const spans: WeightSpan[] = [];
    for (let i = 1; i <= params.max_tokens; i++) {
      if (behaviour.pace) await sleep(behaviour.pace);
      if (behaviour.stand && i > behaviour.stand.after) await behaviour.stand.until;
      while (paused && !response.destroyed) await sleep(1);
      if (response.destroyed) return undefined;
      if (behaviour.dieAfter !== undefined && i > behaviour.dieAfter) {
        response.destroy();
        return undefined;
      }
      behaviour.log?.push('token');
      if (spans.at(-1)?.version === version) (spans.at(-1) as WeightSpan).end = i;
      else spans.push({ version, start: i - 1, end: i });
      const token = last + i;
      const end = i === params.max_tokens;
      const logprobs = { content: [{ token_id: token, logprob: -token / 64, top_logprobs: [] }] };
      sendEvents(response, [
        {
          choices: [
            {
              token_ids: [token],
              finish_reason: end ? 'length' : null,
              logprobs,
              weight_versions: end ? spans : null,
            },
          ],
        },
      ]);
    }
    const details = behaviour.cached ? { prompt_tokens_details: { cached_tokens: behaviour.cached } } : {};
    const usage = { prompt_tokens: prompt.length, completion_tokens: params.max_tokens, ...details };
    sendEvents(response, [{ choices: [], usage }]);
    response.end('data: [DONE]\n\n');
    return undefined;
  };
}

/** Rollouts and servers of a test file, which end after each of its tests. */
export function rolloutsOverServers() {
  const opened: (() => Promise<unknown>)[] = [];
  const said: string[] = [];
  afterEach(async () => {
    for (const close of opened.splice(0).reverse()) await close();
    said.length = 0;
  });
  return {
    /** What the rollouts said. */
    said,
    async start(respond: Respond, port = 0): Promise<FakeInferenceServer> {
      const server = await FakeInferenceServer.start(respond, port);
      opened.push(() => server.kill().catch(() => undefined));
      return server;
    },
    fake(behaviour: Behaviour = {}, port = 0): Promise<FakeInferenceServer> {
      return this.start(counting(behaviour), port);
    },
    async connect(
      servers: readonly FakeInferenceServer[],
      o: Partial<RemoteRolloutOptions> = {},
      protocol: ServerProtocol = new VllmProtocol(),
    ): Promise<RemoteRollout> {
      const rollout = await RemoteRollout.connect({
        protocol,
        servers: servers.map(({ url }) => new GivenServer(protocol, url, null)),
        vocabSize: 1000,
        eosTokenIds: [999],
        maxTokens: 500,
        maxConcurrency: 4,
        recoveryMs: 20_000,
        say: (line) => said.push(line),
        ...o,
      });
      opened.push(() => rollout.close());
      return rollout;
    },
  };
}

export const request = (
  first: number,
  maxNewTokens = 5,
  more: Partial<RolloutRequest> = {},
): RolloutRequest => ({
  promptIds: [first],
  sampling: { maxNewTokens, seed: 7n },
  ...more,
});

export const upwards = (first: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => first + 1 + i);

/** Reads what comes of a request; the number of tokens so far. */
export function follow(handle: RolloutHandle): () => number {
  let count = 0;
  void (async () => {
    for await (const { tokens } of handle) count += tokens.length;
  })().catch(() => undefined); // its result says so, too
  return () => count;
}

/** However slow the machine is; an error with what was there after 30 s. */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
  state: () => unknown,
): Promise<void> {
  const end = performance.now() + 30_000;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`no ${what} within 30 s: ${JSON.stringify(state())}`);
    await sleep(5);
  }
}

export const generations = (server: FakeInferenceServer) =>
  server.calls.filter(({ path }) => path === '/inference/v1/generate');
