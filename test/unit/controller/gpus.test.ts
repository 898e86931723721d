import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { countGpus } from '../../../ts/controller/gpus';

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
  expect(countGpus({}, join(listed, 'nowhere'))).toBeNull();
});
