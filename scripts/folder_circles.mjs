// Part of `npm run lint`: folders may not lead back into each other, however many steps that takes. A folder is the directory
// of a file; a sub-folder is a folder of its own. Reads imports (ts/) and includes (native/) as text, types included; one of a file
// that does not exist is an error, too (a compiler that looks elsewhere as well would not say).
//   node scripts/folder_circles.mjs [directory, default: that of this project]
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const [root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')] = commandLine({
  words: 1,
}).positionals;
let missing = 0;

const LANGUAGES = [
  {
    top: 'ts',
    files: /\.ts$/,
    mentions: /(?:from|import\(|require\()\s*'(\.{1,2}\/[^']+)'/g,
    find: (file, name) => {
      const stem = path.join(path.dirname(file), name).replace(/\.js$/, '');
      return [`${stem}.ts`, `${stem}.d.ts`, stem].find((candidate) => existsSync(path.join(root, candidate)));
    },
  },
  {
    top: 'native',
    files: /\.(cc|h|cu|cuh)$/,
    mentions: /^\s*#include "([^"]+)"/gm,
    find: (_file, name) =>
      existsSync(path.join(root, 'native', name)) ? path.join('native', name) : undefined,
  },
];

/** The folder of a file; a file at the top is a room of its own, because both the entry and the errors lie there. */
function folderOf(file, top) {
  const folder = path.dirname(file);
  return folder === top ? file : folder;
}

/** folder -> folder it leads to -> one place where it does so. */
function edgesOf({ top, files, mentions, find }) {
  const edges = new Map();
  const names = readdirSync(path.join(root, top), { recursive: true })
    .filter((name) => files.test(name))
    .sort();
  for (const file of names.map((name) => path.join(top, name))) {
    const from = folderOf(file, top);
    if (!edges.has(from)) edges.set(from, new Map());
    for (const [, name] of readFileSync(path.join(root, file), 'utf8').matchAll(mentions)) {
      const target = find(file, name);
      if (target === undefined) {
        missing += 1;
        console.error(`${file}: there is no ${name}`);
        continue;
      }
      const to = folderOf(target, top);
      if (to !== from) edges.get(from).set(to, `${file} -> ${target}`);
    }
  }
  return edges;
}

/** A shortest way from a folder back to itself, as the folders on it, or null. */
function circleThrough(start, edges) {
  const cameFrom = new Map();
  const queue = [start];
  for (const folder of queue) {
    for (const next of edges.get(folder)?.keys() ?? []) {
      if (next === start) {
        const way = [start];
        for (let at = folder; at !== start; at = cameFrom.get(at)) way.unshift(at);
        return [start, ...way];
      }
      if (!cameFrom.has(next)) {
        cameFrom.set(next, folder);
        queue.push(next);
      }
    }
  }
  return null;
}

let circles = 0;
const told = new Set();
for (const language of LANGUAGES) {
  const edges = edgesOf(language);
  for (const folder of [...edges.keys()].sort()) {
    const way = told.has(folder) ? null : circleThrough(folder, edges);
    if (!way) continue;
    circles += 1;
    for (const room of way) told.add(room);
    console.error(`folders in a circle: ${way.join(' -> ')}`);
    for (let i = 1; i < way.length; ++i) console.error(`  ${edges.get(way[i - 1]).get(way[i])}`);
  }
}
if (circles > 0) console.error('Move what both need into a folder below them.');
process.exit(circles + missing === 0 ? 0 : 1);
