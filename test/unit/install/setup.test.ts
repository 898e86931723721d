import { rmSync } from 'node:fs';
import { ensureLibTorch } from '../../../ts/install/setup';
import { fakeLibTorch, temporaryDirectory } from './fake_libtorch';

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
