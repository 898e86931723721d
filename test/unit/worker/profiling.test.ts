import { writeFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import type { NativeBinding } from '../../../ts/native/bridge';
import { type ProfiledWork, Profiling } from '../../../ts/worker/profiling';

// The recorder of a worker over a binding that writes down what it is asked.

function recorder(pieces: readonly ProfiledWork[] | null) {
  const said: string[] = [];
  const note = async (line: string): Promise<null> => {
    said.push(line);
    return null;
  };
  const binding = {
    startProfile: () => note('start'),
    stopProfile: async (path: string | null) => {
      if (path !== null)
        writeFileSync(path, `{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [${said.length}]}`);
      return note(path === null ? 'drop' : 'stop');
    },
    enterRange: (name: string) => note(`enter ${name}`),
    leaveRange: () => note('leave'),
  } as unknown as NativeBinding;
  const profiling = new Profiling(binding);
  const call = (engine: string, method: Parameters<Profiling['around']>[1]) =>
    profiling.around(engine, method, () => note(`${method}`));
  const begin = () => profiling.begin({ cuda: false, shapes: false, memory: false, pieces });
  return { said, profiling, call, begin };
}

it('without a profile calls go by', async () => {
  const { said, call } = recorder(null);
  await call('actor', 'updatePolicy');
  expect(said).toEqual(['updatePolicy']);
});

it('one trace of everything, with the calls as ranges', async () => {
  const { said, profiling, call, begin } = recorder(null);
  await begin();
  await call('actor', 'beginRollout');
  await call('actor', 'rolloutTurn');
  await call('actor', 'takeRollout');
  await call('ref', 'computeLogProb');
  await call('critic', 'updateCritic');
  const traces = await profiling.end();
  await call('actor', 'updatePolicy');
  expect(said).toEqual([
    ...['start', 'enter actor_begin_rollout', 'beginRollout', 'leave'],
    ...['enter actor_generate', 'rolloutTurn', 'leave', 'takeRollout'],
    ...['enter ref_compute_log_prob', 'computeLogProb', 'leave'],
    ...['enter critic_update', 'updateCritic', 'leave', 'stop', 'updatePolicy'],
  ]);
  expect(traces).toMatchObject([{ piece: null, pid: process.pid, zero: 1_790_857_026_000 }]);
  expect(JSON.parse(gunzipSync(traces[0]?.bytes as Uint8Array).toString())).toMatchObject({
    traceEvents: [14],
  });
});

it('pieces: generation is one until something else is done, and other roles are not recorded', async () => {
  const { said, profiling, call, begin } = recorder(['actor', 'generate']);
  await begin();
  for (const method of ['beginRollout', 'rolloutTurn', 'rolloutTurn'] as const) await call('actor', method);
  await call('ref', 'computeLogProb');
  await call('actor', 'updatePolicy');
  const traces = await profiling.end();
  expect(traces.map(({ piece }) => piece)).toEqual(['generate', 'actor-update']);
  expect(said.filter((line) => !/^(enter|leave)/.test(line))).toEqual([
    ...['start', 'beginRollout', 'rolloutTurn', 'rolloutTurn', 'stop', 'computeLogProb'],
    ...['start', 'updatePolicy', 'stop'],
  ]);
  expect(said.filter((line) => line.startsWith('enter'))).not.toContain('enter ref_compute_log_prob');
});

it('a call that fails leaves its range, and a profile that is dropped leaves nothing', async () => {
  const { said, profiling, begin } = recorder(null);
  await begin();
  const failing = profiling.around('actor', 'updatePolicy', () => Promise.reject(new Error('it failed')));
  await expect(failing).rejects.toThrow('it failed');
  await profiling.drop();
  await profiling.drop();
  expect(said).toEqual(['start', 'enter actor_update', 'leave', 'drop']);
  expect(await profiling.end()).toEqual([]);
});
