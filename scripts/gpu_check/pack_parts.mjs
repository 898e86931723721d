// What travels to a bare GPU machine, part by part: files of the checkout by their names there.
import { spawnSync } from 'node:child_process';
import { existsSync, lstatSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** npm packages that the tests run with, beside those of `dependencies`. */
const TEST_PACKAGES = ['jest', '@swc/jest', '@swc/core'];
/** In packages nothing reads these. */
const UNREAD =
  /(\.map|\.md|\.d\.[cm]?ts|\.markdown|\.flow|\.tsbuildinfo)$|(^|\/)(test|tests|__tests__|docs?|example|examples|man)\//;
/** Tracked files that the stages read. */
const TRACKED = [
  ...[
    'CMakeLists.txt',
    'LICENSE',
    'package.json',
    'jest.config.js',
    'native',
    'cmake',
    'scripts',
    'bench',
    'ts',
  ],
  ...['examples/arithmetic', 'test/native', 'test/helpers', 'test/conformance', 'test/jest_setup.js'],
  ...['test/jest_teardown.js', 'test/fixtures/conformance', 'docs/cuda.md'],
];

const posix = (...parts) => path.posix.join(...parts);

/** All files below a directory, as names relative to `root`; links to files of it are followed by what packs them. */
function filesBelow(root, directory, wanted = () => true) {
  const found = [];
  for (const entry of readdirSync(path.join(root, directory), { withFileTypes: true })) {
    const name = posix(directory, entry.name);
    if (entry.isDirectory()) found.push(...filesBelow(root, name, wanted));
    else if (wanted(name)) found.push(name);
  }
  return found;
}

function git(root, ...args) {
  const run = spawnSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (run.status !== 0) throw new Error(`git ${args.join(' ')} failed in ${root}: ${run.stderr.trim()}`);
  return run.stdout;
}

/** Directories of the packages that `names` need, through dependencies and optional ones that are installed, as Node finds them. */
export function packageClosure(root, names) {
  const found = new Set();
  const visit = (name, from, optional) => {
    for (let at = from; ; at = posix(at, '..')) {
      const directory = posix(at, 'node_modules', name);
      if (existsSync(path.join(root, directory, 'package.json'))) {
        if (found.has(directory)) return;
        found.add(directory);
        const manifest = JSON.parse(readFileSync(path.join(root, directory, 'package.json'), 'utf8'));
        for (const need of Object.keys(manifest.dependencies ?? {})) visit(need, directory, false);
        for (const need of Object.keys(manifest.optionalDependencies ?? {})) visit(need, directory, true);
        return;
      }
      if (at === '.') break;
    }
    if (!optional)
      throw new Error(`node_modules/${name}, which ${from} needs, is missing: run \`npm install\` first`);
  };
  for (const name of names) visit(name, '.', false);
  return [...found].sort();
}

function packageFiles(root, names) {
  return packageClosure(root, names).flatMap((directory) =>
    filesBelow(root, directory, (name) => {
      const inside = name.slice(directory.length + 1);
      // Packages below it are of their own.
      return !inside.startsWith('node_modules/') && (inside === 'package.json' || !UNREAD.test(inside));
    }),
  );
}

/** Prebuilt addons of the native sources as they are now; others would be measured in their place. */
function prebuiltFiles(root) {
  const directory = `prebuilds/${process.platform}-${process.arch}`;
  if (!existsSync(path.join(root, directory))) return [];
  const addons = filesBelow(root, directory, (name) => name.endsWith('.node'));
  return addons.flatMap((name) => {
    const record = name.replace(/\.node$/, '.json');
    if (!existsSync(path.join(root, record))) return [];
    const { commit, modified } = JSON.parse(readFileSync(path.join(root, record), 'utf8'));
    const sources = ['native', 'cmake', 'CMakeLists.txt'];
    const same = spawnSync('git', ['diff', '--quiet', commit, '--', ...sources], { cwd: root });
    return !modified && same.status === 0 ? [name, record] : [];
  });
}

/**
 * The parts of a pack.
 * @returns {{ name: string, files: string[], tracked?: true }[]} files relative to `root`; tracked: a checkout has them
 */
export function packParts(root) {
  const manifest = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
  const tracked = git(root, 'ls-files', '-z', '--', ...TRACKED)
    .split('\0')
    .filter(Boolean);
  const present = tracked.filter((name) =>
    lstatSync(path.join(root, name), { throwIfNoEntry: false })?.isFile(),
  );
  const below = (...folders) =>
    present.filter((name) => folders.some((folder) => name.startsWith(`${folder}/`)));
  const named = [
    {
      name: 'native sources',
      files: below('native', 'cmake').concat(present.filter((name) => !name.includes('/'))),
    },
    { name: 'tests and cases', files: below('test') },
    { name: 'bench and peers', files: below('bench', 'examples') },
    { name: 'scripts and ts', files: below('scripts', 'ts', 'docs', 'python') },
  ];
  const production = packageFiles(root, Object.keys(manifest.dependencies));
  const forTests = packageFiles(root, TEST_PACKAGES);
  const shared = new Set(production);
  return [
    ...named.map((part) => ({ ...part, tracked: true })),
    { name: 'dist', files: filesBelow(root, 'dist', (name) => !/\.(map|d\.ts)$/.test(name)) },
    { name: 'node_modules', files: production },
    { name: 'node_modules (tests)', files: forTests.filter((name) => !shared.has(name)) },
    { name: 'prebuilt addons', files: prebuiltFiles(root) },
  ];
}
