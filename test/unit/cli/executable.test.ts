import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../../..');

test('the built command starts as a program of its own, as the link that npx keeps starts it', () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  expect(execFileSync(join(ROOT, 'dist', 'cli.js'), ['--version'], { encoding: 'utf8' })).toBe(
    `${version}\n`,
  );
});
