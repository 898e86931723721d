import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { countGpus } from '../../../ts/controller/gpus';
import { createLocalLauncher } from '../../../ts/controller/local_launcher';

test.each([
  ['0,1,2', 3],
  ['GPU-8a2b', 1],
  ['3, 4', 2],
  ['0,-1,1', 1],
  ['-1', 0],
  ['', 0],
])('CUDA_VISIBLE_DEVICES=%j: %d', (visible, count) => {
  expect(countGpus({ CUDA_VISIBLE_DEVICES: visible }, '/nowhere')).toBe(count);
});

test('without it, as many as the driver lists; no driver: not known', () => {
  const listed = mkdtempSync(join(tmpdir(), 'gpus-'));
  expect(countGpus({}, listed)).toBeNull();
  for (const bus of ['0000:01:00.0', '0000:41:00.0']) mkdirSync(join(listed, bus));
  expect(countGpus({}, listed)).toBe(2);
  expect(countGpus({ PATH: '/nowhere' }, join(listed, 'nowhere'))).toBeNull();
});

test('where the driver has no list, as many as nvidia-smi knows; instances of a GPU are not counted', () => {
  const bin = mkdtempSync(join(tmpdir(), 'gpus-'));
  const say = (...lines: string[]): void =>
    writeFileSync(join(bin, 'nvidia-smi'), `#!/bin/sh\n[ "$1" = -L ] || exit 9\n${lines.join('\n')}\n`, {
      mode: 0o755,
    });
  const count = (): number | null => countGpus({ PATH: `${bin}:/usr/bin:/bin` }, '/nowhere');
  say('echo "GPU 0: NVIDIA A (UUID: GPU-1)"', 'echo "  MIG 1g.5gb Device 0: (UUID: MIG-GPU-1/2/0)"');
  expect(count()).toBe(1);
  say('echo "GPU 0: NVIDIA A (UUID: GPU-1)"', 'echo "GPU 1: NVIDIA A (UUID: GPU-3)"');
  expect(count()).toBe(2);
  say('echo "Failed to initialize NVML"', 'exit 9');
  expect(count()).toBeNull();
});

test('GPUs that the launcher names are divided among its workers', async () => {
  const program = { args: ['-e', 'console.error(process.env.CUDA_VISIBLE_DEVICES)'], env: {} };
  const launcher = createLocalLauncher({ env: { CUDA_VISIBLE_DEVICES: '4,6' } }, program);
  const env = { TROUPE_CONTROLLER: '', TROUPE_TOKEN: '', RANK: '1', WORLD_SIZE: '2', LOCAL_RANK: '1' };
  const place = { rank: 1, worldSize: 2, host: 0, localRank: 1, localWorldSize: 2, pool: null };
  const worker = launcher.start({ ...place, device: 'cuda', numThreads: null, env });
  await worker.exited;
  expect(worker.stderrTail()).toBe('6');
});

test('a worker starts on whatever PATH it gets', async () => {
  const program = { args: ['-e', 'console.error(process.env.PATH)'], env: {} };
  const launcher = createLocalLauncher({ env: { PATH: '/nowhere' } }, program);
  const env = { TROUPE_CONTROLLER: '', TROUPE_TOKEN: '', RANK: '0', WORLD_SIZE: '1', LOCAL_RANK: '0' };
  const place = { rank: 0, worldSize: 1, host: 0, localRank: 0, localWorldSize: 1, pool: null };
  const worker = launcher.start({ ...place, device: 'cpu', numThreads: null, env });
  await worker.exited;
  expect(worker.stderrTail()).toBe('/nowhere');
});

test.each([
  [undefined, 'ERROR'],
  ['INFO', 'INFO'],
])(
  'what c10d says of connections that a dead peer has left, stacks and all, is for those who ask: %s',
  async (own, expected) => {
    const before = process.env['TORCH_CPP_LOG_LEVEL'];
    delete process.env['TORCH_CPP_LOG_LEVEL'];
    if (own !== undefined) process.env['TORCH_CPP_LOG_LEVEL'] = own;
    try {
      const program = { args: ['-e', 'console.error(process.env.TORCH_CPP_LOG_LEVEL)'], env: {} };
      const env = { TROUPE_CONTROLLER: '', TROUPE_TOKEN: '', RANK: '0', WORLD_SIZE: '1', LOCAL_RANK: '0' };
      const place = { rank: 0, worldSize: 1, host: 0, localRank: 0, localWorldSize: 1, pool: null };
      const worker = createLocalLauncher({}, program).start({
        ...place,
        device: 'cpu',
        numThreads: null,
        env,
      });
      await worker.exited;
      expect(worker.stderrTail()).toBe(expected);
    } finally {
      delete process.env['TORCH_CPP_LOG_LEVEL'];
      if (before !== undefined) process.env['TORCH_CPP_LOG_LEVEL'] = before;
    }
  },
);
