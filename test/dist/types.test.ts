// What TypeScript makes of the package's declarations in a project of a user.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';

const TSC = join(dirname(createRequire(__filename).resolve('typescript/package.json')), 'bin', 'tsc');

test('the declarations are whole in a strict project that has chosen no types of Node', () => {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-types-'));
  try {
    const file = join(directory, 'tsconfig.json');
    const compilerOptions = {
      strict: true,
      noEmit: true,
      skipLibCheck: false,
      target: 'es2022',
      module: 'nodenext',
      types: [],
    };
    writeFileSync(
      file,
      JSON.stringify({ compilerOptions, files: [resolve(__dirname, '../../dist/index.d.ts')] }),
    );
    const { status, stdout } = spawnSync(process.execPath, [TSC, '-p', file], { encoding: 'utf8' });
    expect({ status, stdout }).toEqual({ status: 0, stdout: '' });
  } finally {
    rmSync(directory, { recursive: true });
  }
}, 120_000);
