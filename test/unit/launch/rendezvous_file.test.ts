import fs, { mkdtempSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { removeRendezvous, writeRendezvous } from '../../../ts/launch/rendezvous_file';

const address = { controllers: ['10.0.0.1:2000'], token: 'abcd' };

test('its owner alone can read it, and it goes', () => {
  const directory = mkdtempSync(join(tmpdir(), 'rendezvous-'));
  const file = join(directory, 'deep', '.rendezvous.json');
  writeRendezvous(file, address);
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(address);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  removeRendezvous(file);
  expect(readdirSync(join(directory, 'deep'))).toEqual([]);
});

test('a disk that is full is named so, and nothing is left', () => {
  const directory = mkdtempSync(join(tmpdir(), 'rendezvous-'));
  const rename = jest.spyOn(fs, 'renameSync').mockImplementation(() => {
    throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' });
  });
  expect(() => writeRendezvous(join(directory, 'r.json'), address)).toThrow(
    expect.objectContaining({
      code: 'NO_SPACE',
      message: expect.stringContaining(join(directory, 'r.json')),
    }),
  );
  rename.mockRestore();
  expect(readdirSync(directory)).toEqual([]);
});
