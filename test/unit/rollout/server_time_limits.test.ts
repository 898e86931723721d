import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { GivenServer } from '../../../ts/rollout/remote/inference_server';
import { RemoteRollout } from '../../../ts/rollout/remote/remote_rollout';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

test('a server that does not come up is given up in time, whatever is collected as garbage meanwhile', async () => {
  const protocol = new VllmProtocol();
  const start = performance.now();
  const collecting = setInterval(collect, 50);
  try {
    const rollout = RemoteRollout.connect({
      protocol,
      servers: [new GivenServer(protocol, 'http://127.0.0.1:9', null)],
      vocabSize: 8,
      eosTokenIds: [0],
      maxTokens: 16,
      maxConcurrency: 1,
      recoveryMs: 1_000,
      say: () => undefined,
    });
    await expect(rollout).rejects.toThrow(/server 1 did not come up \(it has 1 s\)/);
  } finally {
    clearInterval(collecting);
  }
  expect(performance.now() - start).toBeGreaterThan(900);
}, 20_000);
