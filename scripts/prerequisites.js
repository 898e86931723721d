// What must be on a machine before anything is installed: plain CommonJS over Node's own modules, because the
// bootstrap needs it before there is a compiler for TypeScript; `troupe doctor` and `troupe setup` use it too.
const { spawnSync } = require('node:child_process');

const minimumNode = [20, 19];
const minimumCMake = [3, 20];

/**
 * @typedef {{ name: string, ok: boolean, found: string, fix: string }} Prerequisite
 *   found: what is there, or what is wrong, as a sentence; fix: what to do about it.
 */

/** @type {Record<string, () => Prerequisite>} */
const checks = {
  node() {
    const fix = 'Install Node.js 20.19 or newer (nodejs.org, or your version manager).';
    const ok = atLeast(process.versions.node, minimumNode);
    const found = ok
      ? `Node.js ${process.versions.node}`
      : `Node.js 20.19 or newer is needed, this is ${process.versions.node}.`;
    return { name: 'node', ok, found, fix };
  },

  python() {
    const python = process.env.TROUPE_PYTHON || 'python3';
    const version = output(python, ['--version']);
    const fix = 'Install Python 3 with pip (Debian, Ubuntu: apt install python3 python3-pip).';
    if (version === null)
      return { name: 'python', ok: false, found: `Python 3 is needed, but ${python} does not run.`, fix };
    const pip = output(python, ['-m', 'pip', '--version']);
    if (pip === null)
      return { name: 'python', ok: false, found: `pip is needed, but ${version} (${python}) has none.`, fix };
    return { name: 'python', ok: true, found: `${version}, pip ${pip.split(' ')[1]}`, fix };
  },

  cmake() {
    const version = /(\d+\.\d+\.\d+)/.exec(output('cmake', ['--version']) ?? '')?.[1];
    const fix = 'Install CMake (Debian, Ubuntu: apt install cmake; anywhere: pip install cmake).';
    if (!version)
      return {
        name: 'cmake',
        ok: false,
        found: 'CMake 3.20 or newer is needed, but there is none on PATH.',
        fix,
      };
    const ok = atLeast(version, minimumCMake);
    return {
      name: 'cmake',
      ok,
      found: ok ? `CMake ${version}` : `CMake 3.20 or newer is needed, this is ${version}.`,
      fix,
    };
  },

  compiler() {
    const fix =
      'Install GCC 11 or newer, or Clang 14 or newer (Debian, Ubuntu: apt install build-essential), or set CXX.';
    const compilers = process.env.CXX ? [process.env.CXX] : ['c++', 'g++', 'clang++'];
    const present = compilers.filter((name) => output(name, ['--version']) !== null);
    if (present.length === 0) {
      return {
        name: 'compiler',
        ok: false,
        found: `A C++20 compiler is needed, but ${compilers.join(', ')} do not run.`,
        fix,
      };
    }
    const compiler = present[0];
    const version = output(compiler, ['--version']).split('\n')[0];
    const program =
      '#include <concepts>\n#include <span>\ntemplate <std::integral T> T f(std::span<T> s) { return s[0]; }\n';
    const ok = output(compiler, ['-std=c++20', '-fsyntax-only', '-x', 'c++', '-'], program) !== null;
    const found = ok
      ? version
      : `A C++20 compiler is needed, but ${compiler} (${version}) does not compile C++20.`;
    return { name: 'compiler', ok, found, fix };
  },

  make() {
    const ok = ['ninja', 'make'].some((name) => output(name, ['--version']) !== null);
    const fix = 'Install Ninja or Make (Debian, Ubuntu: apt install ninja-build).';
    return {
      name: 'make',
      ok,
      found: ok ? 'Ninja or Make' : 'Ninja or Make is needed, but neither runs.',
      fix,
    };
  },
};

/**
 * @param {string[]} [names] which of node, python, cmake, compiler, make; default all
 * @returns {Prerequisite[]}
 */
function checkPrerequisites(names = Object.keys(checks)) {
  return names.map((name) => checks[name]());
}

/** @param {string} program @param {string[]} args @param {string} [input] */
function output(program, args, input) {
  const run = spawnSync(program, args, { encoding: 'utf8', input, env: process.env });
  return run.status === 0 ? run.stdout.trim() : null;
}

/** @param {string} version @param {number[]} minimum */
function atLeast(version, minimum) {
  const parts = version.split('.').map(Number);
  return parts[0] !== minimum[0] ? parts[0] > minimum[0] : parts[1] >= minimum[1];
}

module.exports = { checkPrerequisites };
