import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { makeDirectories } from '../../../ts/base/make_directories';
import { writableDirectory } from '../../../ts/run/run_directory';

const root = realpathSync(mkdtempSync(join(tmpdir(), 'make-directories-')));
afterAll(() => rmSync(root, { recursive: true }));
const at = (...names: string[]): string => join(root, ...names);

test('parents are made, and links to directories are directories', () => {
  makeDirectories(at('a', 'b', 'c'));
  symlinkSync(at('a'), at('link'));
  makeDirectories(at('link', 'b', 'd'));
  expect(existsSync(at('a', 'b', 'd'))).toBe(true);
});

test('what is there in place of a directory is told', () => {
  writeFileSync(at('file'), '');
  symlinkSync(at('nowhere'), at('dangling'));
  symlinkSync('file', at('to a file'));
  const cases: [string[], string][] = [
    [['file'], `expected a directory, but ${at('file')} is a file`],
    [['file', 'below', 'it'], `expected a directory, but ${at('file')} is a file`],
    [
      ['dangling'],
      `${at('dangling')} is a symbolic link to ${at('nowhere')}, which is no directory: make that`,
    ],
    [
      ['dangling', 'below'],
      `${at('dangling')} is a symbolic link to ${at('nowhere')}, which is no directory`,
    ],
    [['to a file'], `${at('to a file')} is a symbolic link to ${at('file')}, which is no directory`],
  ];
  for (const [names, message] of cases) {
    expect(() => makeDirectories(at(...names))).toThrow(message);
    expect(() => writableDirectory('trainer.default_local_dir', at(...names))).toThrow(
      `cannot write to trainer.default_local_dir ${at(...names)}: ${message}`,
    );
  }
  mkdirSync(at('nowhere'));
  expect(writableDirectory('trainer.default_local_dir', at('dangling'))).toBe(at('dangling'));
});
