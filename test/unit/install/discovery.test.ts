import { chmodSync, mkdirSync, rmSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { discoverLibTorch, findLibTorch } from '../../../ts/install/discovery';
import { inspectLibTorch } from '../../../ts/install/libtorch';
import { fakeLibTorch, temporaryDirectory } from './fake_libtorch';

// The project's own cache would be found before what these tests lay out.
jest.mock('../../../ts/install/package_root', () => ({
  libtorchCaches: (env: NodeJS.ProcessEnv) => [env['TEST_CACHE'] ?? '/nonexistent'],
}));

let root: string;
beforeEach(() => {
  root = temporaryDirectory();
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** A python3 that answers where torch is, as the real one would. */
function fakePython(answer: string): string {
  const file = path.join(root, 'python3');
  writeFileSync(file, `#!/bin/sh\necho '${answer}'\n`);
  chmodSync(file, 0o755);
  return file;
}

const inspect = (dir: string) => inspectLibTorch(dir, 'TROUPE_LIBTORCH', 'TROUPE_LIBTORCH');

describe('inspectLibTorch', () => {
  test.each([undefined, 'cu130'])('reads version and variant (%s)', (cuda) => {
    const dir = fakeLibTorch(root, { version: '2.14.1', cuda });
    expect(inspect(dir)).toEqual({
      dir,
      libDir: path.join(dir, 'lib'),
      version: '2.14.1',
      minor: '2.14',
      variant: cuda ?? 'cpu',
      source: 'TROUPE_LIBTORCH',
    });
  });

  test('accepts the directory that holds torch/', () => {
    const dir = fakeLibTorch(root);
    expect(inspect(root).dir).toBe(dir);
  });

  test.each(['api', null] as const)(
    'reads the version from elsewhere when the header is not there (%s)',
    (versionHeader) => {
      expect(inspect(fakeLibTorch(root, { version: '2.11.2', versionHeader })).version).toBe('2.11.2');
    },
  );

  test.each(['1.13.1', '2.5.1', '2.10.0', '2.15.0', '3.13.0'])(
    'refuses %s, naming the supported range',
    (version) => {
      const dir = fakeLibTorch(root, { version });
      expect(() => inspect(dir)).toThrow(
        `TROUPE_LIBTORCH is LibTorch ${version} (${dir}), but Troupe supports 2.11 to 2.14.`,
      );
    },
  );

  test('tells a missing directory from one that is no LibTorch', () => {
    expect(() => inspect(path.join(root, 'nowhere'))).toThrow('which does not exist');
    expect(() => inspect(root)).toThrow('which has no include/ATen/ATen.h');
  });

  test('sees a copy that was cut short', () => {
    const dir = fakeLibTorch(root);
    truncateSync(path.join(dir, 'lib/libtorch_cpu.so'), 1000);
    expect(() => inspect(dir)).toThrow(
      'lib/libtorch_cpu.so is cut short (1000 of at least 4096 bytes). The copy is incomplete',
    );
    rmSync(path.join(dir, 'lib/libtorch_cpu.so'));
    expect(() => inspect(dir)).toThrow('lib/libtorch_cpu.so is missing');
    writeFileSync(path.join(dir, 'lib/libtorch_cpu.so'), 'oid sha256:…');
    expect(() => inspect(dir)).toThrow('is not a shared library');
  });
});

describe('discovery order', () => {
  test('TROUPE_LIBTORCH comes first and nothing makes up for a wrong one', () => {
    const named = fakeLibTorch(path.join(root, 'named'));
    fakeLibTorch(path.join(root, 'cache', '2.13.0-cpu'));
    const env = { TEST_CACHE: path.join(root, 'cache'), TROUPE_LIBTORCH: named };
    expect(findLibTorch(env)).toMatchObject({ dir: named, source: 'TROUPE_LIBTORCH' });
    expect(() => findLibTorch({ ...env, TROUPE_LIBTORCH: '/nonexistent' })).toThrow(
      'TROUPE_LIBTORCH is /nonexistent',
    );
  });

  test('a fetched copy comes before Python, the one fetched last before the others', () => {
    const cache = path.join(root, 'cache');
    const newer = fakeLibTorch(path.join(cache, '2.14.0-cpu'), { version: '2.14.0' });
    const later = fakeLibTorch(path.join(cache, '2.13.0-cpu'));
    utimesSync(path.dirname(newer), 1000, 1000);
    const env = { TEST_CACHE: cache, TROUPE_PYTHON: fakePython(fakeLibTorch(path.join(root, 'site'))) };
    expect(discoverLibTorch(env).found.map((torch) => torch.dir)).toEqual([later, newer]);
  });

  test('an unfinished or damaged fetch does not count', () => {
    const cache = path.join(root, 'cache');
    fakeLibTorch(path.join(cache, '.partial-1-abc/tree'));
    mkdirSync(path.join(cache, '2.13.0-cpu'));
    const site = fakeLibTorch(path.join(root, 'site'));
    const env = { TEST_CACHE: cache, TROUPE_PYTHON: fakePython(site) };
    const { found, notes } = discoverLibTorch(env);
    expect(found).toMatchObject([{ dir: site, source: 'python' }]);
    expect(notes).toHaveLength(1);
  });

  test('without any the error says what was tried and what to run', () => {
    const old = fakeLibTorch(path.join(root, 'site'), { version: '2.5.1' });
    expect(() => findLibTorch({ TROUPE_PYTHON: fakePython(old) })).toThrow(
      /LibTorch 2\.5\.1.*Run `npx troupe setup`/,
    );
    expect(() => findLibTorch({ TROUPE_PYTHON: fakePython('') })).toThrow('has no importable torch');
    expect(() => findLibTorch({ TROUPE_PYTHON: '/nonexistent/python3' })).toThrow('troupe setup');
  });
});
