// What a prebuilt addon was made from and what it asks of a system: the record beside it, and the check that it asks
// for no more than docs/install.md states.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const families = ['GLIBC', 'GLIBCXX', 'CXXABI', 'GCC'];

/** Output of a program, or an error that says what is missing. */
function output(program, args) {
  const run = spawnSync(program, args, { encoding: 'utf8', cwd: root, maxBuffer: 2 ** 28 });
  if (run.error)
    throw new Error(`${program} does not start (${run.error.message}); install binutils and git`);
  if (run.status !== 0) throw new Error(`${program} ${args.join(' ')} failed: ${run.stderr.trim()}`);
  return run.stdout.trim();
}

export const newerVersion = (a, b) => (a.localeCompare(b, 'en', { numeric: true }) >= 0 ? a : b);

/** Highest version of each symbol family in the output of `objdump -T`: { GLIBC: '2.34', GLIBCXX: '3.4.30', ... }. */
export function symbolVersions(objdump) {
  const found = {};
  for (const [, family, version] of objdump.matchAll(/\(([A-Z]+)_(\d[\d.]*)\)/g)) {
    if (families.includes(family))
      found[family] = family in found ? newerVersion(found[family], version) : version;
  }
  return found;
}

/** What docs/install.md promises that prebuilt addons run with: its row "prebuilt addons need". */
export function statedVersions(page = readFileSync(path.join(root, 'docs', 'install.md'), 'utf8')) {
  const row = page.split('\n').find((line) => line.startsWith('Prebuilt addons need'));
  if (row === undefined) throw new Error('docs/install.md has no line "Prebuilt addons need ..."');
  return symbolVersions(row.replaceAll(/`([A-Z]+_[\d.]+)`/g, '($1)'));
}

/** One sentence for each family of which `needed` goes beyond `stated`. */
export function excess(needed, stated) {
  return Object.entries(needed)
    .filter(
      ([family, version]) => !(family in stated) || newerVersion(version, stated[family]) !== stated[family],
    )
    .map(([family, version]) => {
      const promised = family in stated ? `${family}_${stated[family]}` : `no ${family}`;
      return `it needs ${family}_${version}, but docs/install.md states ${promised}`;
    });
}

/** Problems of an addon that is to be shipped, and what it needs; nothing is changed. */
export function inspect(file) {
  const needs = symbolVersions(output('objdump', ['-T', file]));
  const dynamic = output('readelf', ['-dW', file]);
  const problems = excess(needs, statedVersions());
  if (/\((RUNPATH|RPATH)\)/.test(dynamic)) problems.push('it remembers a directory (rpath)');
  if (/\.(symtab|debug_info)\s/.test(output('readelf', ['-SW', file]))) problems.push('it is not stripped');
  const libraries = [...dynamic.matchAll(/\(NEEDED\).*\[(.*)\]/g)].map((match) => match[1]);
  return { needs, libraries, problems };
}

/** Compilers of build-cmake/ and the flags they got for one file each of C++ and CUDA, without its paths. */
function toolchain() {
  const commands = JSON.parse(readFileSync(path.join(root, 'build-cmake', 'compile_commands.json'), 'utf8'));
  const cache = readFileSync(path.join(root, 'build-cmake', 'CMakeCache.txt'), 'utf8');
  const tool = (language, suffix) => {
    const program = new RegExp(`^CMAKE_${language}_COMPILER:\\w+=(.*)$`, 'm').exec(cache)?.[1];
    const entry = commands.find(({ file }) => file.includes('/native/') && file.endsWith(suffix));
    if (!program || !entry) return null;
    const version = output(program, ['--version']).split('\n');
    const flags = entry.command
      .split(/\s+/)
      .filter((flag) => /^-+(O|f|m|W|std|gencode|generate-code|D(?!TROUPE_VERSION))/.test(flag));
    return { compiler: language === 'CUDA' ? version.at(-2) : version[0], flags: flags.join(' ') };
  };
  return { cxx: tool('CXX', '/addon.cc'), cuda: tool('CUDA', '.cu') };
}

/** Everything about one prebuilt file, for the JSON beside it. `libtorch` as discovery found it. */
export function record(file, { libtorch, version }) {
  const { needs, libraries } = inspect(file);
  return {
    file: path.basename(file),
    troupe: version,
    bytes: statSync(file).size,
    sha256: createHash('sha256').update(readFileSync(file)).digest('hex'),
    built: new Date().toISOString(),
    commit: output('git', ['rev-parse', 'HEAD']),
    modified: output('git', ['status', '--porcelain', '--untracked-files=no']) !== '',
    libtorch: { version: libtorch.version, variant: libtorch.variant },
    ...toolchain(),
    cmake: output('cmake', ['--version']).split('\n')[0],
    needs,
    libraries,
  };
}
