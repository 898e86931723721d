// `npm run lint`: Biome over TypeScript, JavaScript and JSON, the type checker, folders that lead back into each other, first lines of C++ files, the
// declared bridge against the binding, and clang-format over C++ where it is
// installed. With --write (`npm run format`) it puts right what can be put right by machine.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const write = commandLine({ options: { write: { type: 'boolean' } } }).values.write === true;

function sourcesOf(directory) {
  return readdirSync(path.join(root, directory), { recursive: true })
    .filter((name) => /\.(cc|h|cu|cuh)$/.test(name))
    .map((name) => path.join(directory, name));
}

function passes(label, program, args) {
  const result = spawnSync(program, args, { stdio: 'inherit', cwd: root });
  console.log(`${label}: ${result.status === 0 ? 'ok' : 'FAILED'}`);
  return result.status === 0;
}

const node = (script, ...args) => [process.execPath, [path.join(root, 'node_modules', script), ...args]];
const results = [
  passes(
    'biome',
    ...node('@biomejs/biome/bin/biome', 'check', ...(write ? ['--write'] : ['--error-on-warnings'])),
  ),
  passes('tsc', ...node('typescript/bin/tsc', '-p', 'tsconfig.json')),
  passes('tsc of the page', ...node('typescript/bin/tsc', '-p', 'ui/tsconfig.json')),
  passes('folders', process.execPath, [path.join(root, 'scripts', 'folder_circles.mjs')]),
  passes('first lines', process.execPath, [path.join(root, 'scripts', 'first_lines.mjs')]),
  passes('bridge', process.execPath, [path.join(root, 'scripts', 'bridge_check.mjs')]),
];
if (spawnSync('clang-format', ['--version']).status === 0) {
  const mode = write ? ['-i'] : ['--dry-run', '--Werror'];
  results.push(
    passes('clang-format', 'clang-format', [...mode, ...sourcesOf('native'), ...sourcesOf('test/native')]),
  );
} else {
  console.log('clang-format: not installed, C++ was not checked');
}
process.exit(results.every(Boolean) ? 0 : 1);
