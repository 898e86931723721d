import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve as resolvePath } from 'node:path';
import { configTree } from '../../ts/config/reading/read';
import { resolve } from '../../ts/config/reading/resolve';
import { ppoSchema } from '../../ts/config/schema/ppo_schema';
import { sftSchema } from '../../ts/config/schema/sft_schema';

const ROOT = resolvePath(__dirname, '../..');
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

it('programs in the pages are programs: the type checker takes those that import from the package', () => {
  const directory = mkdtempSync(join(ROOT, 'test/docs-'));
  try {
    const pages = PAGES.filter((page) => page !== 'docs/api.md');
    const programs = pages.flatMap((page) =>
      [...readFileSync(join(ROOT, page), 'utf8').matchAll(/```ts\n(import .*?)```/gs)].map(
        ([, program], i) => {
          const file = `${page.replace(/\W/g, '_')}_${i}.mts`;
          writeFileSync(
            join(directory, file),
            (program as string).replaceAll("from 'troupe'", "from '../../ts/index'"),
          );
          return file;
        },
      ),
    );
    expect(programs.length).toBeGreaterThan(3);
    // What the pages speak of before.
    writeFileSync(
      join(directory, 'given.d.ts'),
      'declare const prompts: number[][], responses: number[][];\n',
    );
    const config = {
      extends: '../../tsconfig.json',
      include: ['.', '../../ts'],
      compilerOptions: {
        moduleResolution: 'bundler',
        module: 'preserve',
        noUnusedParameters: false,
        noUnusedLocals: false,
      },
    };
    writeFileSync(join(directory, 'tsconfig.json'), JSON.stringify(config));
    const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
    const { status, stdout } = spawnSync(process.execPath, [tsc, '-p', directory], { encoding: 'utf8' });
    expect([status, stdout]).toEqual([0, '']);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

/** What is wrong with a configuration, beside keys that are not given. */
function mistakes(file: string, text: string): string[] {
  // Sections that `troupe sft` alone has.
  const schema = /^(engine|model|optim):/m.test(text) ? sftSchema : ppoSchema;
  try {
    resolve(schema, configTree({ file, text }, []));
    return [];
  } catch (error) {
    return (error as Error).message.split('\n').filter((line) => !line.includes('but it is not given'));
  }
}

it('configurations in the pages have keys and values that are there', () => {
  const blocks = PAGES.flatMap((page) =>
    [...readFileSync(join(ROOT, page), 'utf8').matchAll(/```yaml\n(.*?)```/gs)].map(([, text]) => ({
      page,
      text: text as string,
    })),
  );
  expect(blocks.length).toBeGreaterThan(10);
  const wrong = blocks.map(({ page, text }) => ({ page, text, mistakes: mistakes(page, text) }));
  expect(wrong.filter((block) => block.mistakes.length > 0)).toEqual([]);
});

it('every page of docs/ is linked from the README', () => {
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
  for (const page of PAGES.slice(2)) expect(readme).toContain(`(${page})`);
});

/** Names that `pattern` captures in the files below `directory` whose names match `files`. */
function named(directory: string, files: RegExp, pattern: RegExp): Set<string> {
  const names = readdirSync(join(ROOT, directory), { recursive: true, encoding: 'utf8' });
  const texts = names
    .filter((name) => files.test(name))
    .map((name) => readFileSync(join(ROOT, directory, name), 'utf8'));
  return new Set(texts.flatMap((text) => [...text.matchAll(pattern)].map(([, name]) => name as string)));
}

it('every variable that tests look at is in CONTRIBUTING.md, and they look at every one that is in its table', () => {
  const text = readFileSync(join(ROOT, 'CONTRIBUTING.md'), 'utf8');
  const read = new Set([
    ...named('test', /\.ts$/, /process\.env\['(TROUPE_\w+)'\]/g),
    ...named('test', /\.(cc|h)$/, /getenv\("(TROUPE_\w+)"\)/g),
  ]);
  // What a stand-in for a worker has from its controller, and what a test sets and takes back.
  for (const name of ['TROUPE_PARENT_PID', 'TROUPE_TOKEN', 'TROUPE_REQUEUE', 'TROUPE_TEST_MODEL'])
    read.delete(name);
  expect([...read].filter((name) => !text.includes(`\`${name}`))).toEqual([]);
  const table = [...text.matchAll(/^\| `(TROUPE_\w+)(?:=\w+)?` \|/gm)].map(([, name]) => name as string);
  expect(table.length).toBeGreaterThan(10);
  expect(table.filter((name) => !read.has(name))).toEqual([]);
});

it('every package that Troupe needs is in the table of libraries, and every library there is one', () => {
  const { dependencies, devDependencies } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    dependencies: Record<string, string>;
    devDependencies: Record<string, string>;
  };
  const text = readFileSync(join(ROOT, 'docs/architecture.md'), 'utf8');
  const [, table] = text.split('## Libraries, and why these') as [string, string];
  const listed = [...table.matchAll(/^\| (?!library|---)([^|]*) \|/gm)].flatMap(([, names]) =>
    (names as string)
      .replace(/ \(.*\)/, '')
      .split(', ')
      .map((name) => name.toLowerCase()),
  );
  expect(Object.keys(dependencies).filter((name) => !listed.includes(name))).toEqual([]);
  const packages = new Set([...Object.keys(dependencies), ...Object.keys(devDependencies)]);
  // Not of npm.
  const others = ['libtorch 2.11-2.14', 'bubblewrap', 'where it is installed'];
  expect(listed.filter((name) => !packages.has(name) && !others.includes(name))).toEqual([]);
});
