import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadUserModule } from '../../../ts/base/user_module';

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'user-module-'));
});
afterAll(() => rmSync(directory, { recursive: true }));

const write = (name: string, text: string): string => {
  const file = join(directory, name);
  writeFileSync(file, text);
  return file;
};

test('its exports', () => {
  expect(loadUserModule(write('a.cjs', 'exports.one = 1;'), 'a.path')).toEqual({ one: 1 });
});

test.each(['null', 'undefined', '3'])('module.exports = %s has no exports', (value) => {
  expect(loadUserModule(write(`${value}.cjs`, `module.exports = ${value};`), 'a.path')).toEqual({});
});

test('a file in Python is told from a module that is broken, and where it belongs', () => {
  const python = write('a.py', 'class A: pass');
  expect(() => loadUserModule(python, 'a.path')).toThrow(
    `a.path: expected a JavaScript or TypeScript module, got ${python}`,
  );
  expect(() => loadUserModule(python, 'a.path', 'programs are for a.command')).toThrow(
    `got ${python}; programs are for a.command`,
  );
  const broken = write('b.cjs', 'class A: pass');
  expect(() => loadUserModule(broken, 'a.path')).toThrow(`a.path: could not load ${broken}: `);
  expect(() => loadUserModule('no/such.mjs', 'a.path')).toThrow(
    `a.path: there is no file ${join(process.cwd(), 'no/such.mjs')}`,
  );
});
