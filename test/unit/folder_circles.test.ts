import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

// scripts/folder_circles.mjs, on small projects.

const script = path.resolve(__dirname, '../../scripts/folder_circles.mjs');
let root: string;
beforeEach(() => {
  root = mkdtempSync(path.join(tmpdir(), 'troupe-circles-'));
  for (const folder of ['ts/a', 'ts/b', 'native/a', 'native/b'])
    mkdirSync(path.join(root, folder), { recursive: true });
});
afterEach(() => rmSync(root, { recursive: true }));

function check(files: Readonly<Record<string, string>>): { status: number | null; stderr: string } {
  for (const [name, text] of Object.entries(files)) writeFileSync(path.join(root, name), text);
  const { status, stderr } = spawnSync(process.execPath, [script, root], { encoding: 'utf8' });
  return { status, stderr };
}

test('folders that lead one way', () => {
  const files = { 'ts/a/x.ts': "import { y } from '../b/y';\n", 'ts/b/y.ts': 'export const y = 1;\n' };
  expect(check(files)).toEqual({ status: 0, stderr: '' });
});

test('a circle is named with what makes it', () => {
  const { status, stderr } = check({
    'native/a/x.h': '#include "b/y.h"\n',
    'native/b/y.h': '#include "a/x.h"\n',
  });
  expect(status).toBe(1);
  expect(stderr).toContain('folders in a circle: native/a -> native/b -> native/a');
  expect(stderr).toContain('native/b/y.h -> native/a/x.h');
});

test('includes and imports of files that do not exist are named', () => {
  const { status, stderr } = check({
    'native/a/x.cc': '#include <vector>\n#include "a/gone.h"\n',
    'ts/a/x.ts': "import type { Y } from '../b/gone';\n",
  });
  expect(status).toBe(1);
  expect(stderr).toBe('ts/a/x.ts: there is no ../b/gone\nnative/a/x.cc: there is no a/gone.h\n');
});
