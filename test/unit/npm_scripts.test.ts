import { readFileSync } from 'node:fs';
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
