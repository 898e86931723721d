// Part of `npm run lint`: every C++ file says in its first line what it is for.
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
// Declarations in the place of Gloo's own headers: their README says what for.
const EXCEPT = path.join('native', 'comm', 'gloo_headers');

const silent = readdirSync(path.join(root, 'native'), { recursive: true })
  .filter((name) => /\.(cc|h|cu|cuh)$/.test(name))
  .map((name) => path.join('native', name))
  .filter((name) => !name.startsWith(EXCEPT))
  .filter((name) => !/^\/\/ \S/.test(readFileSync(path.join(root, name), 'utf8')));
for (const name of silent)
  console.error(`${name}: expected a first line that says what the file is for: "// ..."`);
process.exit(silent.length === 0 ? 0 : 1);
