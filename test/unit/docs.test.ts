import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../..');
const PAGES = [
  'README.md',
  'CONTRIBUTING.md',
  ...readdirSync(join(ROOT, 'docs')).map((name) => `docs/${name}`),
].filter((name) => name.endsWith('.md'));

/** As the pages are shown: lower case, without punctuation, spaces as hyphens. */
const anchorOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .trim()
    .replaceAll(' ', '-');

const anchors = (file: string): string[] =>
  [...readFileSync(file, 'utf8').matchAll(/^#+ (.*)$/gm)].map(([, heading]) => anchorOf(heading as string));

it.each(['api_docs.mjs', 'model_docs.mjs'])(
  'what %s writes is what lies in docs/: else run npm run docs',
  (script) => {
    const { status, stderr } = spawnSync(process.execPath, [join(ROOT, 'scripts', script), '--check'], {
      encoding: 'utf8',
    });
    expect([status, stderr]).toEqual([0, '']);
  },
);

it.each(PAGES)('links of %s lead somewhere', (page) => {
  const file = join(ROOT, page);
  const text = readFileSync(file, 'utf8').replace(/```[\s\S]*?```/g, '');
  for (const [, target] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
    if (/^[a-z]+:/.test(target as string)) continue;
    const [name, anchor] = (target as string).split('#') as [string, string?];
    const to = name === '' ? file : join(dirname(file), name);
    expect([target, existsSync(to)]).toEqual([target, true]);
    if (anchor !== undefined)
      expect([target, anchors(to)]).toEqual([target, expect.arrayContaining([anchor])]);
  }
});

it('every page of docs/ is linked from the README', () => {
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
  for (const page of PAGES.slice(2)) expect(readme).toContain(`(${page})`);
});
