import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

// Jest has a loader of its own: what Node's says of modules that cannot be loaded is seen in a process without it.
const ROOT = resolve(__dirname, '../..');
const LOADER = join(ROOT, 'dist', 'base', 'user_module.js');

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'user-module-'));
  for (const [name, text] of Object.entries(FILES)) writeFileSync(join(directory, name), text);
  mkdirSync(join(directory, 'folder.mjs'));
});
afterAll(() => rmSync(directory, { recursive: true }));

const FILES = {
  'throws.cjs': "const length = (x) => x.y.length;\n\nlength({});\nconsole.log('not reached');\n",
  'throws.mjs':
    "import { readFileSync } from 'node:fs';\nexport const table = readFileSync('/no/such/table');\n",
  'deep.mjs': 'const down = (n) => (n === 0 ? null.x : down(n - 1) + 1);\ndown(60);\n',
  'text.mjs': "throw 'a text';\n",
  'syntax.cjs': 'exports.one = 1;\nexports.two = () => {\n  return 1 +;\n};\n',
  'syntax.mjs': "console.log('not reached');\n\nexport const two = (: 2;\n",
  'imports.mjs': "console.log('not reached');\nimport './syntax.mjs';\n",
  'requires.cjs': "\nrequire('./syntax.mjs');\n",
  'no_export.mjs': "import './throws.mjs';\nimport { nothing } from './good.mjs';\n",
  'good.mjs': 'export const one = 1;\n',
  'package.mjs': "// zod\nimport { z } from '@none/zod/sub';\n",
  'package.cjs': "'use strict';\nrequire('no-zod/sub');\n",
  'ours.mjs': "import { defineTool } from 'troupe';\n",
  'file.mjs': "export const one = 1;\nimport './helper';\n",
  'file.cjs': "require('./helper.cjs');\n",
  'awaits.mjs': 'export const one = await Promise.resolve(1);\n',
};

/** What loading it says, after `a.path: could not load FILE: `; DIR: the folder of the files. */
function failure(name: string): string {
  const program = `
    const { loadUserModule } = require(${JSON.stringify(LOADER)});
    try {
      loadUserModule(${JSON.stringify(name)}, 'a.path');
    } catch (error) {
      console.log(error.code + ' ' + error.path + ' ' + Error.stackTraceLimit + ' ' + error.message);
    }`;
  const stdout = execFileSync(process.execPath, ['--eval', program], {
    cwd: directory,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  return stdout.trimEnd().replaceAll(directory, 'DIR');
}

test.each([
  ['throws.cjs', "Cannot read properties of undefined (reading 'length'), at DIR/throws.cjs:1"],
  ['throws.mjs', "ENOENT: no such file or directory, open '/no/such/table', at DIR/throws.mjs:2"],
  ['deep.mjs', "Cannot read properties of null (reading 'x'), at DIR/deep.mjs:1"],
  ['text.mjs', 'a text'],
  ['syntax.cjs', "Unexpected token ';', at DIR/syntax.cjs:3"],
  ['syntax.mjs', "Unexpected token ':', at DIR/syntax.mjs:3"],
  ['imports.mjs', "Unexpected token ':', at DIR/syntax.mjs:3"],
  ['requires.cjs', "Unexpected token ':', at DIR/requires.cjs:2"],
  [
    'no_export.mjs',
    "The requested module './good.mjs' does not provide an export named 'nothing', at DIR/no_export.mjs:2",
  ],
  [
    'package.mjs',
    "Cannot find package '@none/zod' imported from DIR/package.mjs, at DIR/package.mjs:2: run npm install @none/zod in DIR or a folder above it",
  ],
  [
    'package.cjs',
    "Cannot find module 'no-zod/sub', at DIR/package.cjs:2: run npm install no-zod in DIR or a folder above it",
  ],
  [
    'ours.mjs',
    `Cannot find package 'troupe' imported from DIR/ours.mjs, at DIR/ours.mjs:1: run npm install ${ROOT} in DIR or a folder above it`,
  ],
  ['file.mjs', "Cannot find module 'DIR/helper' imported from DIR/file.mjs, at DIR/file.mjs:2"],
  ['file.cjs', "Cannot find module './helper.cjs', at DIR/file.cjs:1"],
  [
    'awaits.mjs',
    'it, or a module that it imports, awaits at its top level, outside of functions: expected await in functions only',
  ],
])('%s: its error names key, file, line and what to do', (name, reason) => {
  expect(failure(name)).toBe(`INVALID_CONFIG a.path 10 a.path: could not load DIR/${name}: ${reason}`);
});

test('a directory is no module', () => {
  expect(failure('folder.mjs')).toBe(
    'INVALID_CONFIG a.path 10 a.path: expected a file, got the directory DIR/folder.mjs',
  );
});
