import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

// What `npm run` starts in a clone where nothing was built.

const root = path.resolve(__dirname, '../..');
const { scripts } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>;
};

const BUILDS = ['node scripts/bootstrap.mjs', 'npm run build'];
const loadsBuild = (script: string): boolean =>
  readFileSync(path.join(root, script), 'utf8').includes("require('../dist/");
/** The commands that run a script over the build, each with what runs before it. */
const overBuild = Object.entries(scripts).flatMap(([name, command]) => {
  const steps = command.split(' && ');
  const at = steps.findIndex((step) => {
    const script = /^node (scripts\/\S+)$/.exec(step)?.[1];
    return script !== undefined && script !== 'scripts/bootstrap.mjs' && loadsBuild(script);
  });
  return at === -1 ? [] : [{ name, before: steps.slice(0, at), script: steps[at] as string }];
});

test('those that load the build are found', () => {
  expect(overBuild.map(({ name }) => name)).toEqual(
    expect.arrayContaining(['docs', 'prebuilds', 'test:cuda-build', 'test:package']),
  );
});

test.each(overBuild)('npm run $name makes the build that it loads', ({ before, script }) => {
  const file = readFileSync(path.join(root, script.slice('node '.length)), 'utf8');
  const itself = file.includes("['run', '--silent', 'build']");
  expect(itself || before.some((step) => BUILDS.some((build) => step.startsWith(build)))).toBe(true);
});

/** What the bootstrap of an empty clone says with these programs before those of the machine. */
function bootstrapped(programs: Readonly<Record<string, string>>): string {
  const clone = mkdtempSync(path.join(tmpdir(), 'a clone '));
  const [folder, bin] = [path.join(clone, 'scripts'), path.join(clone, 'bin')];
  mkdirSync(folder);
  mkdirSync(bin);
  for (const name of ['bootstrap.mjs', 'command_line.mjs', 'prerequisites.js'])
    copyFileSync(path.join(root, 'scripts', name), path.join(folder, name));
  writeFileSync(path.join(clone, 'package-lock.json'), '{}');
  for (const [name, script] of Object.entries(programs))
    writeFileSync(path.join(bin, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const { TROUPE_LIBTORCH: _, TROUPE_PYTHON: __, ...env } = process.env;
  const { stderr } = spawnSync(process.execPath, [path.join(folder, 'bootstrap.mjs')], {
    encoding: 'utf8',
    env: { ...env, PATH: `${bin}:${env['PATH']}` },
    timeout: 60_000,
  });
  return stderr.trim();
}

test.each([
  ['torch', 0, /^troupe: npm ci failed with exit code 7/],
  [
    'no torch',
    1,
    /^troupe: this machine lacks .*\n {2}pip is needed, but Python 3\.12\.1 \(python3\) has none\./,
  ],
])('a Python without pip that has %s: pip is needed to fetch LibTorch alone', (_, status, said) => {
  const python = `case "$*" in --version) echo Python 3.12.1;; *find_spec*) exit ${status};; *) exit 1;; esac`;
  const tools = { cmake: 'echo cmake version 3.25.1', 'c++': 'echo c++', make: 'echo make' };
  expect(bootstrapped({ ...tools, npm: 'exit 7', python3: python })).toMatch(said);
});
