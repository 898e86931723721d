import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

export function temporaryDirectory(): string {
  return mkdtempSync(path.join(tmpdir(), 'troupe-test-'));
}

/** A file that looks like a complete ELF shared library: a header whose section table ends at the last byte. */
export function fakeLibrary(bytes = 4096): Buffer {
  const file = Buffer.alloc(bytes);
  file.writeUInt32BE(0x7f454c46, 0);
  file.writeBigUInt64LE(BigInt(bytes - 2 * 64), 40);
  file.writeUInt16LE(64, 58);
  file.writeUInt16LE(2, 60);
  return file;
}

export interface FakeOptions {
  version?: string;
  cuda?: string;
  versionHeader?: 'headeronly' | 'api' | null;
}

/** Lays out just what discovery looks at; returns the torch directory. */
export function fakeLibTorch(parent: string, options: FakeOptions = {}): string {
  const { version = '2.13.0', cuda, versionHeader = 'headeronly' } = options;
  const torch = path.join(parent, 'torch');
  const write = (name: string, content: string | Buffer): void => {
    const file = path.join(torch, name);
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, content);
  };
  const [major, minor, patch] = version.split('.');
  const defines = `#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH ${patch}\n`;
  write('include/ATen/ATen.h', '');
  if (versionHeader === 'headeronly') write('include/torch/headeronly/version.h', defines);
  if (versionHeader === 'api') write('include/torch/csrc/api/include/torch/version.h', defines);
  write('version.py', `__version__ = '${version}+${cuda ?? 'cpu'}'\n`);
  write('lib/libc10.so', fakeLibrary());
  write('lib/libtorch_cpu.so', fakeLibrary());
  if (cuda) write('lib/libtorch_cuda.so', fakeLibrary());
  return torch;
}
