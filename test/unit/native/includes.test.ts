import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

const root = path.resolve(__dirname, '../../..');

// ATen/ATen.h brings these along in newer versions, with which CI compiles.
test('files that switch gradients on or off include what LibTorch 2.11 has them in', () => {
  const sources = ['native', 'test/native'].flatMap((folder) =>
    readdirSync(path.join(root, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.(cc|h|cu)$/.test(name))
      .map((name) => path.join(folder, name)),
  );
  const using = sources.filter((name) =>
    /at::(NoGradGuard|AutoGradMode)/.test(readFileSync(path.join(root, name), 'utf8')),
  );
  expect(using.length).toBeGreaterThan(10);
  const without = using.filter(
    (name) => !readFileSync(path.join(root, name), 'utf8').includes('#include <ATen/core/grad_mode.h>'),
  );
  expect(without).toEqual([]);
});
