import { TroupeError } from '../errors';
import { type Addon, addonFor, listAddons } from '../install/addons';
import { discoverLibTorch } from '../install/discovery';
import { inspectLibTorch, type LibTorch } from '../install/libtorch';
import type { NativeBinding } from './bridge';
import { wrapBinding } from './wrap_binding';

export interface LocatedAddon {
  /** Path of the .node file. */
  addon: string;
  kind: 'local' | 'prebuilt';
  libtorch: LibTorch;
  /** Of the addon: 'cpu', or the CUDA it was built for. */
  variant: string;
}

/**
 * Chooses an addon and the LibTorch to run it with; loads neither. The controller calls this and puts
 * `libtorch.libDir` on the library path of its workers.
 *
 * Throws TroupeError NATIVE_UNAVAILABLE when there is no LibTorch, no addon, or none that fits the other.
 */
export function locateAddon(env: NodeJS.ProcessEnv = process.env): LocatedAddon {
  const addons = listAddons();
  const { found, notes } = discoverLibTorch(env);
  for (const libtorch of found) {
    const addon = addonFor(addons, libtorch);
    if (addon !== null) return { addon: addon.file, kind: addon.kind, libtorch, variant: addon.variant };
  }
  // What a local build was linked with still serves it, unless TROUPE_LIBTORCH asked for another one.
  const local = addons.find((addon) => addon.libtorchDir !== null);
  if (local?.libtorchDir && !env['TROUPE_LIBTORCH']) {
    try {
      const libtorch = inspectLibTorch(
        local.libtorchDir,
        'build',
        'The LibTorch that the addon was built with',
      );
      return { addon: local.file, kind: local.kind, libtorch, variant: local.variant };
    } catch (error) {
      notes.push((error as Error).message);
    }
  }
  throw new TroupeError('NATIVE_UNAVAILABLE', explainNothingFits(addons, found, notes));
}

function explainNothingFits(addons: Addon[], found: LibTorch[], notes: string[]): string {
  const remedy =
    'Run `npx troupe setup`, which fetches LibTorch and builds the addon if it must; `npx troupe doctor` shows the whole picture.';
  if (found.length === 0) return `No usable LibTorch was found. ${notes.join(' ')} ${remedy}`;
  const torches = found
    .map((torch) => `LibTorch ${torch.version} (${torch.variant}, ${torch.dir})`)
    .join(' and ');
  if (addons.length === 0) {
    return `There is no native addon for ${process.platform}-${process.arch}, neither built nor prebuilt; found ${torches}. ${remedy}`;
  }
  const built = addons.map(
    (addon) => `${addon.file} (LibTorch ${addon.minor ?? 'unknown'}, ${addon.variant})`,
  );
  return `No native addon fits ${torches}; there are ${built.join(', ')}. ${remedy}`;
}

let loaded: NativeBinding | null = null;

/**
 * Loads the addon into this process and returns it with errors turned into TroupeError. For worker
 * processes and binding tests only: a crash in native code takes the process with it.
 *
 * Throws TroupeError NATIVE_UNAVAILABLE with the reason and the remedy. TROUPE_TRACE_NATIVE_CALLS=1 logs every call.
 */
export function loadBinding(): NativeBinding {
  if (loaded !== null) return loaded;
  const located = locateAddon();
  let raw: NativeBinding;
  try {
    raw = require(located.addon) as NativeBinding;
  } catch (error) {
    throw new TroupeError('NATIVE_UNAVAILABLE', explainLoadFailure(located, (error as Error).message), {
      cause: error,
    });
  }
  loaded = wrapBinding(raw, { trace: Boolean(process.env['TROUPE_TRACE_NATIVE_CALLS']) });
  return loaded;
}

/** Turns what the dynamic linker says into what to do about it. */
export function explainLoadFailure(located: LocatedAddon, reason: string): string {
  const { libtorch } = located;
  const head = `Cannot load ${located.addon} with LibTorch ${libtorch.version} (${libtorch.dir}): ${reason}.`;
  const needed = /version [`'](GLIBC(?:XX)?)_([\d.]+)' not found/.exec(reason);
  if (needed) {
    const library = needed[1] === 'GLIBC' ? 'glibc' : 'libstdc++';
    return `${head} It needs a newer ${library} (${needed[1]}_${needed[2]}) than this system has: build it here with \`npx troupe setup --rebuild\`, or use a newer system.`;
  }
  const missing = /(\S+\.so[.\d]*): cannot open shared object file/.exec(reason)?.[1];
  if (missing && /^lib(torch|c10)/.test(missing)) {
    return `${head} ${missing} is not on the library path: set LD_LIBRARY_PATH=${libtorch.libDir} before node starts (worker processes get it from their controller).`;
  }
  if (missing && /^lib(cu|nv|nccl)/.test(missing)) {
    return `${head} This LibTorch is a CUDA build and ${missing} of the CUDA libraries is missing: install it, or fetch a CPU build (docs/install.md).`;
  }
  if (missing) return `${head} Install the package that provides ${missing}.`;
  if (reason.includes('undefined symbol')) {
    return `${head} The addon was compiled against another LibTorch: rebuild it with \`npx troupe setup --rebuild\`.`;
  }
  return `${head} Rebuild it with \`npx troupe setup --rebuild\`; \`npx troupe doctor\` shows the whole picture.`;
}
