import { EngineHost } from '../../../ts/worker/engine_host';
import type { WorkRequest } from '../../../ts/worker/protocol';
import { createFakeBinding } from '../../helpers/fake_binding';
import { fakeEngineOptions } from '../../helpers/fake_group';

async function hostWithActor(): Promise<EngineHost> {
  const host = new EngineHost(createFakeBinding());
  await host.serve({ type: 'createEngine', requestId: 1, engine: 'actor', options: fakeEngineOptions });
  return host;
}

function call(engine: string, method: string, args: unknown[]): WorkRequest {
  return { type: 'callEngine', requestId: 2, engine, method, args };
}

test('calls reach the engine of that name', async () => {
  const host = await hostWithActor();
  await host.serve(call('actor', 'getTensor', ['param', 'hello']));
  expect(await host.serve(call('actor', 'parameters', []))).toEqual([
    { name: 'hello', shape: [], matrix: false },
  ]);
});

test('an unknown engine is an error that lists the known ones', async () => {
  const host = await hostWithActor();
  await expect(host.serve(call('critic', 'parameters', []))).rejects.toThrow(
    "there is no engine 'critic' in this worker; it has: 'actor'",
  );
});

test('an engine name is used once, and may be used again after closing', async () => {
  const host = await hostWithActor();
  const create = { type: 'createEngine', requestId: 3, engine: 'actor', options: fakeEngineOptions } as const;
  await expect(host.serve(create)).rejects.toThrow("the engine 'actor' exists already");
  await host.serve({ type: 'closeEngine', requestId: 4, engine: 'actor' });
  await host.serve({ type: 'closeEngine', requestId: 5, engine: 'actor' });
  await host.serve(create);
});

test.each(['close', 'constructor', 'createEngine', 'nothing'])(
  '%s cannot be called by name',
  async (method) => {
    const host = await hostWithActor();
    await expect(host.serve(call('actor', method, []))).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
    const request: WorkRequest = { type: 'callBinding', requestId: 6, method, args: [] };
    await expect(host.serve(request)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
  },
);
