// Writes ts/config/verl/defaults_table.json, the keys and defaults of verl's configuration files by version, from checkouts:
// node scripts/verl_defaults.mjs v0.6.1=CHECKOUT main=CHECKOUT,RECIPE_CHECKOUT ... (oldest first), after npm run build.
// Of every file: its package, its defaults list, and key by key the value in each version; no text, no comments.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { load } from 'js-yaml';
import { commandLine, refuse } from './command_line.mjs';

const { VERL_YAML } = createRequire(import.meta.url)('../dist/config/verl/config_files.js');

const WANTED = 'NAME=CHECKOUT[,RECIPE_CHECKOUT]';
const versions = commandLine({ words: Number.POSITIVE_INFINITY }).positionals.map((argument) => {
  const [name, directories] = argument.split('=');
  if (!directories) refuse(`expected ${WANTED}, got ${argument}`);
  return { name, directories: directories.split(',') };
});
if (versions.length === 0) refuse(`expected ${WANTED} ...`);

/** Folder of a checkout -> prefix of its files in the table. Only what the trainers that exist here read. */
const SOURCES = {
  'verl/trainer/config': '',
  'recipe/dapo/config': 'recipe.dapo/',
  'dapo/config': 'recipe.dapo/',
  'verl/experimental/fully_async_policy/config': 'fully_async/',
  'recipe/fully_async_policy/config': 'fully_async/',
  'verl/experimental/one_step_off_policy/config': 'one_step_off/',
  'recipe/one_step_off_policy/config': 'one_step_off/',
};
const LEFT_OUT = /^(_generated|evaluation|generation)/;

const leaves = (tree, prefix = '') =>
  Object.entries(tree ?? {}).flatMap(([key, value]) =>
    typeof value === 'object' && value !== null && !Array.isArray(value) && Object.keys(value).length > 0
      ? leaves(value, `${prefix}${key}.`)
      : [[prefix + key, value]],
  );

const files = {};
const put = (entry, version, value) => {
  const json = JSON.stringify(value);
  const same = Object.entries(entry).find(([, other]) => JSON.stringify(other) === json);
  if (same) delete entry[same[0]];
  entry[(same?.[0] ?? '') + version] = value;
};

for (const [index, { directories }] of versions.entries()) {
  for (const directory of directories) {
    for (const [folder, prefix] of Object.entries(SOURCES)) {
      const root = path.join(directory, folder);
      if (!existsSync(root)) continue;
      for (const name of readdirSync(root, { recursive: true }).sort()) {
        if (!name.endsWith('.yaml') || LEFT_OUT.test(path.basename(name))) continue;
        const text = readFileSync(path.join(root, name), 'utf8');
        const file = prefix + name.slice(0, -'.yaml'.length);
        files[file] ??= { package: {}, defaults: {}, keys: {} };
        const { defaults = [], hydra: _, ...tree } = load(text, { schema: VERL_YAML }) ?? {};
        put(files[file].package, index, /^# *@package +(\S+)/m.exec(text)?.[1] ?? null);
        put(files[file].defaults, index, defaults);
        for (const [key, value] of leaves(tree)) {
          files[file].keys[key] ??= {};
          put(files[file].keys[key], index, value);
        }
      }
    }
  }
}

// One line per key: differences between versions can be read.
const line = ([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`;
const rows = Object.entries(files).map(
  ([name, { package: pkg, defaults, keys }]) =>
    `${JSON.stringify(name)}:{"package":${JSON.stringify(pkg)},"defaults":${JSON.stringify(defaults)},"keys":{\n` +
    `${Object.entries(keys).map(line).join(',\n')}}}`,
);
const text = `{"versions":${JSON.stringify(versions.map(({ name }) => name))},\n"files":{\n${rows.join(',\n')}\n}}\n`;
JSON.parse(text);
writeFileSync(new URL('../ts/config/verl/defaults_table.json', import.meta.url), text);
