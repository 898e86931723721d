import { spawnSync } from 'node:child_process';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { resolve } from 'node:path';

// A function of the native addon that does not return any more, in one process: a hang that the addon knows nothing of. Its first
// instruction becomes a jump to itself, in that process's own copy of the code.

const ADDON = resolve(__dirname, '../../build/Release/troupe.node');

/** A jump to itself, by architecture. */
const LOOPS: Readonly<Record<string, readonly number[]>> = {
  x64: [0xeb, 0xfe],
  arm64: [0x00, 0x00, 0x00, 0x14],
};

/** Where a function begins in the addon; null: there are no symbols, or no program that reads them. `name`: with its class, "A::f". */
function addressOf(name: string): number | null {
  const { status, stdout } = spawnSync('nm', ['--demangle', ADDON], {
    encoding: 'utf8',
    maxBuffer: 64 << 20,
    timeout: 60_000,
  });
  if (status !== 0) return null;
  const line = stdout
    .split('\n')
    .find((text) => /^[0-9a-f]+ [tT] /.test(text) && text.includes(` ${name}(`) && !text.includes('[clone'));
  return line === undefined ? null : Number.parseInt(line, 16);
}

export class StuckFunction {
  /** Why it cannot be made here; null: it can. */
  readonly obstacle: string | null;
  private readonly address: number | null;

  constructor(name: string) {
    this.address = addressOf(name);
    if (LOOPS[process.arch] === undefined) this.obstacle = `not on ${process.arch}`;
    else if (this.address === null) this.obstacle = 'no nm, or no symbols in the addon';
    // Whether the memory of another process may be written.
    else this.obstacle = process.getuid?.() === 0 ? null : 'not root';
  }

  /** Its next call in process `pid` never returns. @throws Error where the addon is not loaded there */
  in(pid: number): void {
    const first = readFileSync(`/proc/${pid}/maps`, 'utf8')
      .split('\n')
      .find((line) => line.endsWith('/troupe.node') && line.includes(' 00000000 '));
    if (first === undefined) throw new Error(`process ${pid} has not loaded the addon`);
    const memory = openSync(`/proc/${pid}/mem`, 'r+');
    try {
      const at = Number.parseInt(first, 16) + (this.address as number);
      writeSync(memory, Buffer.from(LOOPS[process.arch] as number[]), 0, undefined, at);
    } finally {
      closeSync(memory);
    }
  }
}
