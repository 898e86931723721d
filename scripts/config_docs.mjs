// Writes the tables of docs/config.md from the schemas: node scripts/config_docs.mjs, after npm run build.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { documentSchema } = require('../dist/config/schema/schema_docs.js');
const { ppoSchema } = require('../dist/config/schema/ppo_schema.js');
const { sftSchema } = require('../dist/config/schema/sft_schema.js');

const file = new URL('../docs/config.md', import.meta.url);
let text = readFileSync(file, 'utf8');
for (const [name, schema] of Object.entries({ train: ppoSchema, sft: sftSchema })) {
  const [begin, end] = [`<!-- begin ${name} -->`, `<!-- end ${name} -->`];
  const [before, rest] = text.split(begin);
  if (rest === undefined) throw new Error(`docs/config.md has no "${begin}"`);
  text = `${before}${begin}\n${documentSchema(schema)}\n${end}${rest.split(end)[1]}`;
}
writeFileSync(file, text);
