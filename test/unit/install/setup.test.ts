import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { localRecord } from '../../../ts/install/addons';
import { buildAddon } from '../../../ts/install/build';
import { ensureLibTorch, runSetup } from '../../../ts/install/setup';
import { fakeLibTorch, temporaryDirectory } from './fake_libtorch';

jest.mock('../../../ts/install/addons', () => ({
  ...jest.requireActual('../../../ts/install/addons'),
  localRecord: `${jest.requireActual('node:os').tmpdir()}/troupe-setup-${process.pid}/troupe.json`,
}));
jest.mock('../../../ts/install/build', () => ({ buildAddon: jest.fn() }));
jest.mock('../../../ts/install/prerequisites', () => ({ checkPrerequisites: () => [] }));

let root: string;
beforeEach(() => {
  root = temporaryDirectory();
  process.env['TROUPE_LIBTORCH'] = fakeLibTorch(root);
});
afterEach(() => {
  delete process.env['TROUPE_LIBTORCH'];
  rmSync(root, { recursive: true, force: true });
});

const silent = (): void => undefined;

test('a LibTorch that is there is used as it is', async () => {
  expect(await ensureLibTorch({}, silent)).toMatchObject({ version: '2.13.0', source: 'TROUPE_LIBTORCH' });
  expect(await ensureLibTorch({ version: '2.13.0' }, silent)).toMatchObject({ version: '2.13.0' });
});

test.each([{ version: '2.14.1' }, { force: true }])(
  'a fetch that TROUPE_LIBTORCH would hide is refused: %o',
  async (options) => {
    await expect(ensureLibTorch(options, silent)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('unset it first'),
    });
  },
);

test('an addon stays usable when the one that should replace it cannot be built', async () => {
  mkdirSync(path.dirname(localRecord), { recursive: true });
  writeFileSync(localRecord, '{}');
  jest.mocked(buildAddon).mockImplementation(({ force }) => {
    throw new Error(`the compiler failed, forced: ${force}`);
  });
  await expect(runSetup({ rebuild: true, log: silent })).rejects.toThrow('the compiler failed, forced: true');
  expect(existsSync(localRecord)).toBe(true);
  rmSync(path.dirname(localRecord), { recursive: true });
});
