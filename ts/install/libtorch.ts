import { closeSync, existsSync, fstatSync, openSync, readFileSync, readSync, statSync } from 'node:fs';
import path from 'node:path';
import { TroupeError } from '../errors';

/** Minor versions of LibTorch that the native core compiles and runs with: 2.11 up to 2.14. */
export const supportedMinors = [11, 12, 13, 14] as const;
export const supportedRange = '2.11 to 2.14';
/** What `troupe setup` fetches unless told otherwise. */
export const pinnedVersion = '2.13.0';

export type LibTorchSource = 'TROUPE_LIBTORCH' | 'cache' | 'python' | 'build';

/** A LibTorch that was looked at and found usable. */
export interface LibTorch {
  /** The directory that holds include/ and lib/: a LibTorch, or the `torch` directory of a Python wheel. */
  dir: string;
  libDir: string;
  /** '2.13.0' */
  version: string;
  /** '2.13': addons are compatible within one minor version. */
  minor: string;
  /** 'cpu', or the CUDA it was built for: 'cu130'. */
  variant: string;
  source: LibTorchSource;
}

const versionHeaders = [
  'include/torch/headeronly/version.h',
  'include/torch/csrc/api/include/torch/version.h',
];

/**
 * Looks at one directory and returns what it holds; it loads nothing.
 *
 * Throws TroupeError NATIVE_UNAVAILABLE when there is no LibTorch, when it is incomplete (a copy that
 * was interrupted), or when its version is not supported; `origin` says in the message who named the directory.
 */
export function inspectLibTorch(directory: string, source: LibTorchSource, origin: string): LibTorch {
  const dir = resolveTorchDirectory(directory);
  if (dir === null) {
    const state = existsSync(directory) ? 'has no include/ATen/ATen.h' : 'does not exist';
    throw unusable(
      `${origin} is ${directory}, which ${state}. ` +
        'Expected a LibTorch directory (with include/ and lib/) or the torch directory of a Python installation.',
    );
  }
  const version = readVersion(dir);
  const [major, minor] = version.split('.').map(Number) as [number, number];
  if (major !== 2 || !supportedMinors.some((supported) => supported === minor)) {
    throw unusable(`${origin} is LibTorch ${version} (${dir}), but Troupe supports ${supportedRange}.`);
  }
  const libDir = path.join(dir, 'lib');
  for (const name of ['libc10.so', 'libtorch_cpu.so']) {
    const problem = sharedLibraryProblem(path.join(libDir, name));
    if (problem !== null) {
      throw unusable(
        `${origin} is LibTorch ${version} (${dir}), but lib/${name} ${problem}. ` +
          'The copy is incomplete: remove it and install or copy it again.',
      );
    }
  }
  return { dir, libDir, version, minor: `${major}.${minor}`, variant: readVariant(dir), source };
}

/** Accepts the directory itself, or one that holds `torch/` (a site-packages, a fetched copy). */
function resolveTorchDirectory(directory: string): string | null {
  for (const candidate of [directory, path.join(directory, 'torch')]) {
    if (existsSync(path.join(candidate, 'include', 'ATen', 'ATen.h'))) return path.resolve(candidate);
  }
  return null;
}

function readVersion(dir: string): string {
  for (const header of versionHeaders) {
    const file = path.join(dir, header);
    if (!existsSync(file)) continue;
    const text = readFileSync(file, 'utf8');
    const parts = ['MAJOR', 'MINOR', 'PATCH'].map(
      (part) => new RegExp(`#define TORCH_VERSION_${part} (\\d+)`).exec(text)?.[1],
    );
    if (parts.every((part) => part !== undefined)) return parts.join('.');
  }
  const declared = declaredVersion(dir);
  if (declared !== null) return declared.split('+')[0] as string;
  throw unusable(
    `${dir} looks like a LibTorch, but neither ${versionHeaders[0]} nor version.py says which version. ` +
      'The copy is incomplete: remove it and install or copy it again.',
  );
}

/** '2.13.0+cpu' from version.py (wheel) or build-version (LibTorch archive). */
function declaredVersion(dir: string): string | null {
  const python = path.join(dir, 'version.py');
  if (existsSync(python)) {
    return /__version__ = ['"]([^'"]+)['"]/.exec(readFileSync(python, 'utf8'))?.[1] ?? null;
  }
  const archive = path.join(dir, 'build-version');
  return existsSync(archive) ? readFileSync(archive, 'utf8').trim() : null;
}

function readVariant(dir: string): string {
  if (!existsSync(path.join(dir, 'lib', 'libtorch_cuda.so'))) return 'cpu';
  const tag = /\+(cu\d+)/.exec(declaredVersion(dir) ?? '')?.[1];
  return tag ?? 'cuda';
}

/** What is wrong with an ELF file as a phrase, or null. Its section table ends the file, so a short copy is seen. */
function sharedLibraryProblem(file: string): string | null {
  if (!existsSync(file) || !statSync(file).isFile()) return 'is missing';
  const header = Buffer.alloc(64);
  const handle = openSync(file, 'r');
  try {
    const size = fstatSync(handle).size;
    if (readSync(handle, header, 0, 64, 0) < 64 || header.readUInt32BE(0) !== 0x7f454c46) {
      return 'is not a shared library for Linux';
    }
    const expected = Number(header.readBigUInt64LE(40)) + header.readUInt16LE(58) * header.readUInt16LE(60);
    return size < expected ? `is cut short (${size} of at least ${expected} bytes)` : null;
  } finally {
    closeSync(handle);
  }
}

function unusable(message: string): TroupeError {
  return new TroupeError('NATIVE_UNAVAILABLE', message);
}
