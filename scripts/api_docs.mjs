// Writes docs/api.md from the declarations that the TypeScript compiler made: node scripts/api_docs.mjs, after npm run build.
// With --check it writes nothing and fails when the page is another one.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeOrCheck } from './generated_page.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const page = path.join(root, 'docs', 'api.md');

/** Folder of dist/ -> heading. What lies in a folder that is not here comes last, under the folder's name. */
const HEADINGS = new Map([
  ['batch', 'Batch'],
  ['actor', 'Actor and its losses'],
  ['critic', 'Critic'],
  ['reward_model', 'Reward model'],
  ['engine', 'Options of engines'],
  ['algorithms', 'Algorithms'],
  ['trainer', 'Trainers'],
  ['config', 'Configuration'],
  ['reward', 'Rewards'],
  ['data', 'Data'],
  ['controller', 'Workers'],
  ['weights', 'Weights'],
  ['export', 'Export'],
  ['errors', 'Errors'],
]);

const read = (module) => readFileSync(path.join(root, 'dist', `${module}.d.ts`), 'utf8');

/** The names that the package exports, with the modules that index.d.ts takes them from. */
function exportedNames() {
  const names = [];
  for (const [, list, module] of read('index').matchAll(/export (?:type )?\{([^}]*)\} from '\.\/([^']+)'/g)) {
    for (const name of list.split(',').map((entry) => entry.replace(/^\s*type\s+/, '').trim())) {
      if (name) names.push({ name, module });
    }
  }
  return names;
}

/** The end of a declaration that starts at `from`: its closing brace, or the semicolon outside all brackets. */
function endOfDeclaration(text, from) {
  let depth = 0;
  for (let at = from; at < text.length; at++) {
    const char = text[at];
    if (text.startsWith('/*', at)) at = text.indexOf('*/', at) + 1;
    else if (text.startsWith('//', at)) at = text.indexOf('\n', at);
    else if (char === "'" || char === '"') at = text.indexOf(char, at + 1);
    else if ('{(['.includes(char)) depth++;
    else if ('})]'.includes(char)) {
      depth--;
      const block = /^export (?:declare (?:abstract )?class|interface)/.test(text.slice(from, from + 40));
      if (depth === 0 && char === '}' && block) return at + 1;
    } else if (char === ';' && depth === 0) return at + 1;
  }
  throw new Error(`the declaration at ${from} does not end`);
}

/** Comment and declaration of `name` (every overload of a function), following re-exports. */
function declarationOf(name, module) {
  const text = read(module);
  const start = new RegExp(
    `(?:/\\*\\*(?:[^*]|\\*(?!/))*\\*/\\n)?export (?:declare (?:abstract )?(?:class|function|const)|interface|type) ${name}\\b`,
    'g',
  );
  const found = [...text.matchAll(start)].map((match) => {
    const declared = match.index + match[0].search(/export (?:declare|interface|type)/);
    return text.slice(match.index, endOfDeclaration(text, declared));
  });
  if (found.length > 0) return found.join('\n');
  for (const [, list, target] of text.matchAll(/export (?:type )?\{([^}]*)\} from '([^']+)'/g)) {
    const here = list.split(',').some((entry) => entry.trim().replace(/^type\s+/, '') === name);
    if (here) return declarationOf(name, path.posix.join(path.posix.dirname(module), target));
  }
  throw new Error(`${module}.d.ts does not declare ${name}, which index.d.ts exports`);
}

/** Without what a caller cannot use: private members. */
function publicPart(declaration) {
  return declaration
    .replace(/(?:[ \t]*\/\*\*(?:[^*]|\*(?!\/))*\*\/\n)?[ \t]+private [^\n]*\n/g, '')
    .replace(/(?:[ \t]*\/\*\*(?:[^*]|\*(?!\/))*\*\/\n)?[ \t]+#private;\n/g, '')
    .replaceAll('export declare ', '')
    .replace(/^export /gm, '');
}

function apiPage() {
  if (!existsSync(path.join(root, 'dist', 'index.d.ts')))
    throw new Error('dist/index.d.ts is missing: run npm run build first');
  const sections = new Map([...HEADINGS.values()].map((heading) => [heading, []]));
  for (const { name, module } of exportedNames()) {
    const heading = HEADINGS.get(module.split('/')[0]) ?? module.split('/')[0];
    if (!sections.has(heading)) sections.set(heading, []);
    sections
      .get(heading)
      .push(`### ${name}\n\n\`\`\`ts\n${publicPart(declarationOf(name, module))}\n\`\`\`\n`);
  }
  const used = [...sections].filter(([, entries]) => entries.length > 0);
  const anchor = (heading) => heading.toLowerCase().replaceAll(' ', '-');
  return [
    '# API',
    '',
    'Everything that `troupe` exports, as its types declare it. Written by `scripts/api_docs.mjs`; do not edit.',
    'Notation: B sequences, ΣL tokens of all sequences, ΣR response tokens, V words of the vocabulary, [..] the length of an array.',
    '',
    '```ts',
    "import { Actor, Batch, loadConfig, Trainer } from 'troupe'; // ES modules; CommonJS: const { Actor } = require('troupe')",
    '',
    "const config = loadConfig('grpo.yaml', ['trainer.total_epochs=2']);",
    'await new Trainer(config, { reward: ({ response, groundTruth }) => (response.trim() === groundTruth ? 1 : 0) }).fit();',
    '```',
    '',
    ...used.map(([heading]) => `- [${heading}](#${anchor(heading)})`),
    '',
    ...used.flatMap(([heading, entries]) => [`## ${heading}`, '', ...entries]),
  ].join('\n');
}

writeOrCheck(page, apiPage());
