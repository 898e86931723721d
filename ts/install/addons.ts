import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import nodeGypBuild from 'node-gyp-build';
import { packageRoot } from './package_root';

/** A compiled addon on disk, and what it needs. */
export interface Addon {
  file: string;
  kind: 'local' | 'prebuilt';
  /** Minor version of the LibTorch it was compiled against, '2.13'; null when unknown. */
  minor: string | null;
  /** 'cpu' runs with any LibTorch of its minor version; 'cu130' needs that very variant. */
  variant: string;
  /** The LibTorch that a local build was linked with. */
  libtorchDir: string | null;
}

/** Written beside a local build by build.ts; says what the addon was made from. */
export interface BuildRecord {
  /** Hash over the native sources, the CMake files and the options. */
  stamp: string;
  libtorch: { dir: string; version: string; variant: string };
  cuda: boolean;
}

export const localAddon = path.join(packageRoot, 'build', 'Release', 'troupe.node');
export const localRecord = path.join(packageRoot, 'build', 'Release', 'troupe.json');

export function prebuildsDirectory(root: string = packageRoot): string {
  return path.join(root, 'prebuilds', `${process.platform}-${process.arch}`);
}

/** 'troupe.libtorch2.13.cpu', the file name of a prebuilt addon without `.node`. */
export function prebuiltName(minor: string, variant: string): string {
  return `troupe.libtorch${minor}.${variant}`;
}

export function readBuildRecord(file: string = localRecord): BuildRecord | null {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as BuildRecord;
  } catch {
    return null;
  }
}

/** Every addon of this platform: the local build first, because whoever builds one wants it used. */
export function listAddons(root: string = packageRoot): Addon[] {
  const addons: Addon[] = [];
  const local = localBuild(root);
  if (local !== null) {
    const record = readBuildRecord(path.join(path.dirname(local), 'troupe.json'));
    addons.push({
      file: local,
      kind: 'local',
      minor: record === null ? null : record.libtorch.version.split('.').slice(0, 2).join('.'),
      variant: record?.cuda ? record.libtorch.variant : 'cpu',
      libtorchDir: record?.libtorch.dir ?? null,
    });
  }
  const directory = prebuildsDirectory(root);
  const names = existsSync(directory) ? readdirSync(directory).sort() : [];
  for (const name of names) {
    const tags = /^troupe\.libtorch(\d+\.\d+)\.(cpu|cu\d+)\.node$/.exec(name);
    if (!tags) continue;
    const [, minor, variant] = tags as unknown as [string, string, string];
    addons.push({ file: path.join(directory, name), kind: 'prebuilt', minor, variant, libtorchDir: null });
  }
  return addons;
}

/**
 * node-gyp-build knows where a local build lies (and PREBUILDS_ONLY and TROUPE_PREBUILD), but nothing of
 * LibTorch: from prebuilds/ it would take any file, so what it finds there is left to the tags above.
 */
function localBuild(root: string): string | null {
  try {
    const file = nodeGypBuild.resolve(root);
    return path.dirname(path.dirname(file)) === path.join(root, 'prebuilds') ? null : file;
  } catch {
    return null;
  }
}

/** The best addon for a LibTorch: a local build, then the variant's own prebuilt, then the CPU one. */
export function addonFor(addons: Addon[], libtorch: { minor: string; variant: string }): Addon | null {
  const fits = addons.filter(
    (addon) =>
      addon.minor === libtorch.minor && (addon.variant === 'cpu' || addon.variant === libtorch.variant),
  );
  const rank = (addon: Addon): number =>
    (addon.kind === 'local' ? 2 : 0) + (addon.variant === libtorch.variant ? 1 : 0);
  return fits.sort((a, b) => rank(b) - rank(a))[0] ?? null;
}
