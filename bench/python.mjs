import { spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, dirname, join } from 'node:path';

const require = createRequire(import.meta.url);

/** Runs a program; resolves to its stdout, each line also given to `onLine`. Stderr lines go to `onError`. */
export function runProgram(command, args, { env = {}, onLine = () => {}, onError = null } = {}) {
  return new Promise((done, fail) => {
    const child = spawn(command, args, {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', onError ? 'pipe' : 'inherit'],
    });
    const splitter = (emit) => {
      let rest = '';
      return (chunk) => {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop();
        lines.forEach(emit);
      };
    };
    child.stdout.setEncoding('utf8').on('data', splitter(onLine));
    child.stderr?.setEncoding('utf8').on('data', splitter(onError));
    child.on('error', fail);
    child.on('close', (code, signal) =>
      code === 0
        ? done()
        : fail(new Error(`${command} ${args.join(' ')} ended with ${signal ?? `exit code ${code}`}`)),
    );
  });
}

/** A Python with torch, transformers, safetensors and numpy; what is missing is installed under `directory`. */
export class Python {
  #env;

  constructor(directory) {
    this.command = process.env.TROUPE_PYTHON || 'python3';
    this.site = join(directory, 'site');
    this.#env = { PYTHONPATH: this.site, PYTHONDONTWRITEBYTECODE: '1' };
  }

  /** Puts the torch of our own LibTorch first where it is a Python package, so that both sides use one library. */
  async prepare(withPeers) {
    const { findLibTorch } = require('../dist/install/discovery.js');
    const { dir, version } = findLibTorch();
    if (existsSync(join(dir, '__init__.py'))) {
      this.#env.PYTHONPATH = [dirname(dir), this.site].join(delimiter);
    }
    await this.#need('torch', [`torch==${version}`]);
    if (withPeers)
      await this.#need('transformers, safetensors, numpy', ['transformers', 'safetensors', 'numpy']);
  }

  async #need(modules, packages) {
    const probe = spawnSync(this.command, ['-c', `import ${modules}`], {
      env: { ...process.env, ...this.#env },
    });
    if (probe.status === 0) return;
    console.error(`installing ${packages.join(', ')} for ${this.command} in ${this.site}`);
    await runProgram(
      this.command,
      ['-m', 'pip', 'install', '--target', this.site, '--upgrade', ...packages],
      {
        onLine: (line) => console.error(line),
      },
    );
  }

  /** Runs a script and returns the objects of its JSON lines. */
  async jsonLines(script, args) {
    const lines = [];
    await runProgram(this.command, [script, ...args], {
      env: this.#env,
      onLine: (line) => {
        if (line.startsWith('{')) lines.push(JSON.parse(line));
      },
    });
    return lines;
  }
}
