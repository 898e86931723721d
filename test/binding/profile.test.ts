import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadBinding } from '../../ts/native/loader';

const binding = loadBinding();
const PLAIN = { cuda: false, shapes: false, memory: false };

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-profile-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

test('a profile is written where it is asked for; without a path it is lost, and another one may begin', async () => {
  await binding.startProfile(PLAIN);
  await expect(binding.startProfile(PLAIN)).rejects.toThrow(/profile/);
  await binding.stopProfile(null);
  const file = path.join(dir, 'trace.json');
  await binding.startProfile(PLAIN);
  await binding.enterRange('what is done');
  await binding.leaveRange();
  expect(existsSync(file)).toBe(false);
  await binding.stopProfile(file);
  expect(readFileSync(file, 'utf8')).toContain('"what is done"');
});
