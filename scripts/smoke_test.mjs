// Packs Troupe, installs the tarball into an empty project as its users would, on a PATH with neither a compiler nor CMake,
// type-checks a consumer of each module system and runs it. `npm test` runs this after the tests.
//   TROUPE_LIBTORCH=<dir> npm run test:package [-- --tarball FILE]
// Without --tarball the addon of build/ goes into the tarball, stripped and without its rpath, as `npm run prebuilds`
// makes them. Where neither npm's cache nor the registry has the dependencies it says so and passes.
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';
import { inspect } from './prebuilt_record.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const { values } = commandLine({ options: { tarball: { type: 'string' } } });
const { findLibTorch } = require('../dist/install/discovery.js');
const {
  addonFor,
  listAddons,
  localAddon,
  prebuildsDirectory,
  prebuiltName,
} = require('../dist/install/addons.js');
const libtorch = findLibTorch();
const work = mkdtempSync(path.join(tmpdir(), 'troupe-smoke-'));
const started = performance.now();

const say = (line) => console.log(`[package ${((performance.now() - started) / 1000).toFixed(0)} s] ${line}`);

/** What npm calls its errors when no registry answers. */
const unreachable =
  /npm error code (ENOTCACHED|ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|E?NETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E50[234])/;

/** Output of a program; throws with what it printed when it fails. */
function run(program, args, options = {}) {
  const result = spawnSync(program, args, { encoding: 'utf8', timeout: 60_000, ...options });
  if (result.status === 0) return result.stdout;
  const how = result.error?.message ?? result.signal ?? `exit code ${result.status}`;
  const error = new Error(`${program} ${args.join(' ')}: ${how}\n${result.stdout}${result.stderr}`);
  error.offline = unreachable.exec(result.stderr)?.[1];
  throw error;
}

/** Only what a machine without development tools has: what npm and its scripts themselves call. */
function barePath() {
  const bin = path.join(work, 'bin');
  mkdirSync(bin);
  const programs = ['sh', 'env', 'dirname', 'basename', 'readlink', 'uname', 'sed', 'npm'];
  for (const name of programs)
    symlinkSync(run('sh', ['-c', `command -v ${name}`]).trim(), path.join(bin, name));
  symlinkSync(process.execPath, path.join(bin, 'node'));
  return bin;
}

const pack = (directory) => {
  const args = ['pack', '--ignore-scripts', '--json', '--pack-destination', work];
  return JSON.parse(run('npm', args, { cwd: directory }))[0];
};

/** Our files and the local addon in the place and the state of a prebuilt one. */
function packWithAddon() {
  const local = listAddons(root).find(({ kind }) => kind === 'local');
  if (local === undefined) throw new Error(`${localAddon} is missing: run npm run build:native first`);
  const { filename } = pack(root);
  run('tar', ['-xzf', path.join(work, filename), '-C', work]);
  const stage = path.join(work, 'package');
  const prebuilds = prebuildsDirectory(stage);
  rmSync(prebuilds, { recursive: true, force: true });
  mkdirSync(prebuilds, { recursive: true });
  const addon = path.join(prebuilds, `${prebuiltName(local.minor, local.variant)}.node`);
  cpSync(local.file, addon);
  const script = path.join(work, 'rpath.cmake');
  writeFileSync(script, `file(RPATH_REMOVE FILE "${addon}")\n`);
  run('cmake', ['-P', script]);
  run('strip', [addon]);
  return stage;
}

/** Of a page: relative links that lead to no file and no folder of these. */
function deadLinks(page, names) {
  const text = readFileSync(path.join(root, page), 'utf8');
  const links = [...text.matchAll(/\]\(([^)#\s]+)[^)\s]*\)/g)].map(([, link]) => link);
  return links
    .filter((link) => !/^[a-z]+:/.test(link))
    .map((link) => path.posix.normalize(path.posix.join(path.posix.dirname(page), link)).replace(/\/$/, ''))
    .filter((target) => !names.has(target) && ![...names].some((name) => name.startsWith(`${target}/`)))
    .map((target) => `${page} to ${target}`);
}

function checkContents({ files, size, unpackedSize }) {
  const useless = files
    .map((file) => file.path)
    .filter((name) => /(^test\/|\.test\.|\.map$|^ts\/|^bench\/)/.test(name));
  if (useless.length > 0) throw new Error(`the tarball has files of no use: ${useless.join(', ')}`);
  const names = new Set(files.map((file) => file.path));
  const dead = [...names].filter((name) => name.endsWith('.md')).flatMap((name) => deadLinks(name, names));
  if (dead.length > 0) throw new Error(`pages of the tarball lead to what it has not: ${dead.join(', ')}`);
  const mb = (bytes) => `${(bytes / 2 ** 20).toFixed(2)} MB`;
  say(`${files.length} files, ${mb(size)} packed, ${mb(unpackedSize)} unpacked`);
  for (const { path: name, size: bytes } of files.filter((file) => file.path.endsWith('.node')))
    say(`${name}: ${mb(bytes)}`);
}

/** An empty project with the tarball installed by npm, which gives up soon where no registry answers. */
function install(tarball, env) {
  const project = path.join(work, 'project');
  mkdirSync(project);
  writeFileSync(path.join(project, 'package.json'), '{ "name": "consumer", "private": true }\n');
  const network = ['--fetch-retries', '1', '--fetch-retry-mintimeout', '1000', '--fetch-timeout', '30000'];
  const args = ['install', tarball, '--prefer-offline', '--no-audit', '--no-fund', ...network];
  run('npm', args, { cwd: project, env, timeout: 240_000 });
  say('npm install');
  return project;
}

/** Type-checks the consumers with the options of a bundler, then of Node, where tsc also compiles them. */
function compile(project) {
  for (const name of ['consumer.mts', 'consumer.cts'])
    cpSync(path.join(root, 'scripts', 'smoke', name), path.join(project, name));
  const typeRoots = path.join(root, 'node_modules', '@types');
  const strict = ['--strict', '--target', 'es2022', '--types', 'node', '--typeRoots', typeRoots];
  const check = (args) =>
    run(process.execPath, [path.join(root, 'node_modules', 'typescript', 'bin', 'tsc'), ...strict, ...args], {
      cwd: project,
    });
  check([
    '--noEmit',
    '--module',
    'preserve',
    '--moduleResolution',
    'bundler',
    'consumer.mts',
    'consumer.cts',
  ]);
  check(['--module', 'nodenext', '--moduleResolution', 'nodenext', 'consumer.mts', 'consumer.cts']);
  say('types: bundler and nodenext');
}

/** Runs both consumers on models of the conformance fixtures, and the doctor, as a user of the project would. */
function use(project, env) {
  const models = path.join(root, 'test', 'fixtures', 'conformance', 'models', 'llama_gqa');
  for (const [script, role] of [
    ['consumer.mjs', 'actor'],
    ['consumer.cjs', 'critic'],
  ]) {
    const printed = run(process.execPath, [script, path.join(models, role)], { cwd: project, env });
    if (!printed.includes('smoke: ok')) throw new Error(`${script} printed ${printed}`);
    say(`${script} computes (${role})`);
  }
  const doctor = run(path.join(project, 'node_modules', '.bin', 'troupe'), ['doctor'], { cwd: project, env });
  if (!doctor.includes('(prebuilt,')) throw new Error(`doctor sees no prebuilt addon:\n${doctor}`);
  say(/^.*\(prebuilt,.*$/m.exec(doctor)[0].trim().replaceAll(project, '<project>'));
}

/** The addon that npm installed asks no more of a system than docs/install.md states. */
function checkInstalled(project) {
  const addon = addonFor(listAddons(path.join(project, 'node_modules', 'troupe')), libtorch);
  if (addon?.kind !== 'prebuilt')
    throw new Error(`the package has no prebuilt addon for LibTorch ${libtorch.minor} (${libtorch.variant})`);
  const { needs, problems } = inspect(addon.file);
  if (problems.length > 0) throw new Error(`the prebuilt addon: ${problems.join('; ')}`);
  say(
    `${path.basename(addon.file)} needs ${Object.entries(needs)
      .map((entry) => entry.join('_'))
      .join(', ')}`,
  );
}

/** Scores with a function in Python: the installed package has the program for it. */
function scoreInPython(project) {
  writeFileSync(
    path.join(project, 'reward.py'),
    'def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return float(solution_str == ground_truth)\n',
  );
  const program = `
    const { RewardProcess } = require('./node_modules/troupe/dist/reward/scorers/reward_process.js');
    const module_ = { path: 'reward.py', name: 'compute_score' };
    const scorer = new RewardProcess({ kind: 'function', module: module_, libraries: [], kwargs: {} }, 60000);
    scorer.call({ response: '42', groundTruth: '42', dataSource: '', extraInfo: {} }).then((score) => console.log('score', score));
  `;
  const printed = run(process.execPath, ['-e', program], { cwd: project });
  if (printed.trim() !== 'score 1') throw new Error(`a reward function in Python: ${printed}`);
  say('a reward function in Python scores');
}

try {
  const bare = { PATH: barePath(), HOME: work, TROUPE_LIBTORCH: libtorch.dir };
  for (const tool of ['cc', 'c++', 'g++', 'gcc', 'clang', 'cmake', 'make', 'ninja', 'python3'])
    if (existsSync(path.join(bare.PATH, tool))) throw new Error(`${tool} is on the bare PATH`);
  const registry = run('npm', ['config', 'get', 'registry']).trim();
  const cache = run('npm', ['config', 'get', 'cache']).trim();
  const env = { ...bare, npm_config_registry: registry, npm_config_cache: cache };
  for (const name of ['NODE_EXTRA_CA_CERTS', 'HTTPS_PROXY', 'https_proxy', 'NO_PROXY', 'no_proxy'])
    if (process.env[name]) env[name] = process.env[name];

  const packed = values.tarball ? null : pack(packWithAddon());
  if (packed) checkContents(packed);
  const project = install(packed ? path.join(work, packed.filename) : path.resolve(values.tarball), env);
  checkInstalled(project);
  compile(project);
  use(project, env);
  scoreInPython(project);
  console.log('Package: passed');
} catch (error) {
  if (error.offline) {
    console.log(`Package: skipped, npm cannot get the dependencies here (${error.offline})`);
  } else {
    console.error(`Package: FAILED\n${error.message}`);
    process.exitCode = 1;
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
