import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

// scripts/gpu-pack.mjs on a small checkout, and what it would take of this one.

const ours = path.resolve(__dirname, '../../..');
const script = path.join(ours, 'scripts', 'gpu-pack.mjs');
let root: string;
let checkout: string;
beforeEach(() => {
  root = mkdtempSync(path.join(tmpdir(), 'troupe-gpu-pack-'));
  checkout = path.join(root, 'checkout');
  const files = {
    'package.json': JSON.stringify({ dependencies: { a: '1' } }),
    'CMakeLists.txt': 'project(x)\n',
    'native/core.cc': '// core\n',
    'scripts/gpu-check.sh': 'cd "$(dirname "$0")/.." && echo "checked with $*" && find . -type f | sort\n',
    'bench/run.mjs': '',
    'test/fixtures/conformance/case.json': '{}',
    'docs/other.md': 'not needed',
    'dist/cli.js': '',
    'dist/cli.js.map': '{}',
    'node_modules/a/package.json': JSON.stringify({
      dependencies: { b: '2' },
      optionalDependencies: { gone: '1' },
    }),
    'node_modules/a/index.js': '',
    'node_modules/a/README.md': 'unread',
    'node_modules/a/node_modules/b/package.json': '{}',
    'node_modules/b/package.json': '{}',
    'node_modules/unused/package.json': '{}',
    ...Object.fromEntries(
      ['jest', '@swc/jest', '@swc/core'].map((name) => [`node_modules/${name}/package.json`, '{}']),
    ),
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(checkout, name)), { recursive: true });
    writeFileSync(path.join(checkout, name), text);
  }
  writeFileSync(path.join(checkout, '.gitignore'), 'node_modules/\ndist/\n/.gpu/\n');
  const git = (...args: string[]) => spawnSync('git', ['-C', checkout, ...args]);
  git('init', '-q');
  git('add', '-A');
  git('-c', 'user.name=x', '-c', 'user.email=x@x', 'commit', '-qm', 'all');
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function pack(directory: string, ...args: string[]) {
  const all = [script, directory, '--root', checkout, '--no-node', ...args];
  const { status, stdout, stderr } = spawnSync(process.execPath, all, { encoding: 'utf8', timeout: 60_000 });
  return { status, said: stdout + stderr };
}

/** What the unpacked pack's own check prints: its arguments and all files. */
function start(directory: string) {
  const run = spawnSync('bash', [path.join(directory, 'run.sh'), 'out', '--list'], {
    encoding: 'utf8',
    env: { ...process.env, TROUPE_GPU_DIR: path.join(root, 'there') },
    timeout: 60_000,
  });
  return { status: run.status, said: run.stdout + run.stderr };
}

const EVERYTHING = [
  ...['./CMakeLists.txt', './bench/run.mjs', './dist/cli.js', './from-checkout.txt', './native/core.cc'],
  ...['./node_modules/@swc/core/package.json', './node_modules/@swc/jest/package.json'],
  ...['./node_modules/a/index.js', './node_modules/a/node_modules/b/package.json'],
  ...['./node_modules/a/package.json', './node_modules/jest/package.json', './pack.json', './package.json'],
  ...['./scripts/gpu-check.sh', './test/fixtures/conformance/case.json'],
];

test('the archive has what is needed and starts by itself, without the checkout', () => {
  const packed = pack(path.join(root, 'pack'));
  expect(packed.said).toMatch(/MiB {2}node_modules \(3 files\)/);
  expect(packed.status).toBe(0);
  rmSync(checkout, { recursive: true });
  const { said, status } = start(path.join(root, 'pack'));
  expect(status).toBe(0);
  const [first, ...files] = said.trim().split('\n');
  expect(first).toBe('checked with out --list');
  expect(files.filter((name) => name !== './.unpacked').sort()).toEqual([...EVERYTHING].sort());
});

test('beside a checkout it takes from there what git has', () => {
  const inside = path.join(checkout, '.gpu');
  expect(pack(inside, '--beside-checkout').said).not.toContain('native sources');
  const files = start(inside).said.trim().split('\n').slice(1);
  expect(files.filter((name) => name !== './.unpacked').sort()).toEqual([...EVERYTHING].sort());
});

test('one that is too large is refused, with the size of each part, and none is left', () => {
  writeFileSync(path.join(checkout, 'dist', 'large.bin'), require('node:crypto').randomBytes(2 ** 20));
  const { status, said } = pack(path.join(root, 'pack'), '--max-mib', '0.5');
  expect(status).toBe(1);
  expect(said).toMatch(/1\.\d\d MiB {2}dist/);
  expect(said).toContain('more than the 0.5 MiB that may travel');
  expect(existsSync(path.join(root, 'pack'))).toBe(false);
});

test('a package that is not installed is named', () => {
  rmSync(path.join(checkout, 'node_modules', 'b'), { recursive: true });
  rmSync(path.join(checkout, 'node_modules', 'a', 'node_modules'), { recursive: true });
  expect(pack(path.join(root, 'pack')).said).toContain(
    'node_modules/b, which node_modules/a needs, is missing',
  );
});

test('every file of this checkout that a stage starts is in its pack', () => {
  const program = `
    const { packParts } = await import(${JSON.stringify(path.join(ours, 'scripts/gpu_check/pack_parts.mjs'))});
    const { stagesFor } = await import(${JSON.stringify(path.join(ours, 'scripts/gpu_check/stages.mjs'))});
    const files = packParts(process.cwd()).flatMap((part) => part.files);
    const machine = { root: process.cwd(), libtorch: '', jobs: 1 };
    const words = ['cpu', 'cuda'].flatMap((device) => stagesFor({ ...machine, device }))
      .flatMap(({ command }) => command.join(' ').split(/[\\s'"]+/));
    const started = words.filter((word) => /^(scripts|bench|examples|test|dist|node_modules)\\/.*\\.(mjs|js|ts|py)$/.test(word));
    console.log(JSON.stringify({ started: started.length, missing: started.filter((name) => !files.includes(name)) }));`;
  const run = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    cwd: ours,
    encoding: 'utf8',
  });
  expect(run.stderr).toBe('');
  const { started, missing } = JSON.parse(run.stdout) as { started: number; missing: string[] };
  expect(started).toBeGreaterThan(20);
  expect(missing).toEqual([]);
  expect(readFileSync(path.join(ours, 'scripts/gpu_check/run.sh'), 'utf8')).toContain('scripts/gpu-check.sh');
});
