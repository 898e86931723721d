// Removes what is built (not node_modules, and not the LibTorch that was fetched: those are slow to get back).
// With names as arguments only those of the list.
import { rmSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine, oneOf } from './command_line.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const built = ['dist', 'ui/dist', 'build', 'build-cmake', 'build-cuda', 'coverage'];
const named = commandLine({ words: built.length }).positionals.map((name) =>
  oneOf(name, built, 'what to remove'),
);
for (const name of built.filter((entry) => named.length === 0 || named.includes(entry))) {
  rmSync(path.join(root, name), { recursive: true, force: true });
}
