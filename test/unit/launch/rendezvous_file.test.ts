import fs, { mkdtempSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runHostAgent } from '../../../ts/host/run_agent';
import { writeRendezvous } from '../../../ts/launch/rendezvous_file';

const address = { controllers: ['10.0.0.1:2000'], token: 'abcd' };

test('its owner alone can read it, and it goes', () => {
  const directory = mkdtempSync(join(tmpdir(), 'rendezvous-'));
  const file = join(directory, 'deep', '.rendezvous.json');
  const withdraw = writeRendezvous(file, address);
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(address);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  withdraw();
  expect(readdirSync(join(directory, 'deep'))).toEqual([]);
  withdraw();
});

test('a controller that ends late leaves the file of the one that has taken its place', () => {
  const file = join(mkdtempSync(join(tmpdir(), 'rendezvous-')), 'r.json');
  const late = writeRendezvous(file, address);
  const next = { ...address, token: 'ef01' };
  const withdraw = writeRendezvous(file, next);
  late();
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(next);
  withdraw();
  expect(readdirSync(join(file, '..'))).toEqual([]);
});

test('a parent that refuses children is an error, and no endless wait', () => {
  expect(() => writeRendezvous('/proc/troupe/none/r.json', address)).toThrow(
    /cannot write \/proc\/troupe\/none\/r\.json: ENOENT/,
  );
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

test.each(['10.0.0.1:99999', 'host', 'http://host:1', 'host:0'])(
  'an agent is told of an address that is none: %s',
  async (controller) => {
    const file = join(mkdtempSync(join(tmpdir(), 'rendezvous-')), 'r.json');
    writeFileSync(file, JSON.stringify({ ...address, controllers: [controller] }));
    const agent = { source: { file }, network: null, index: null, waitMs: 1, say: () => undefined };
    await expect(runHostAgent(agent)).rejects.toThrow(
      /no controller was found within .*r\.json: expected one line/,
    );
  },
);

test('an agent that is to use a network which this host has not says so at once', async () => {
  const file = join(mkdtempSync(join(tmpdir(), 'rendezvous-')), 'of a controller that is yet to come');
  const agent = { source: { file }, network: 'nosuch0', index: null, waitMs: 600_000, say: () => undefined };
  await expect(runHostAgent(agent)).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringMatching(/^network nosuch0: expected an interface, a subnet .* which has lo /),
  });
});

test('an agent looks for its controller as long as it is to, whatever becomes of the clock', async () => {
  const clock = jest.spyOn(Date, 'now').mockReturnValue(0);
  const file = join(mkdtempSync(join(tmpdir(), 'rendezvous-')), 'r.json');
  const agent = { source: { file }, network: null, index: null, waitMs: 300, say: () => undefined };
  await expect(runHostAgent(agent)).rejects.toThrow(/no controller was found within 0.3 s: ENOENT/);
  clock.mockRestore();
});
