import { randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { TroupeError } from '../errors';
import { codeFiles } from './code_files';
import { withoutNames } from './json_floats';
import { makeDirectories } from './make_directories';

/** Files of a saved model or checkpoint: only a directory of nothing but these is replaced by a new save. */
const OURS = /\.(safetensors|json|txt|model|jinja)$|^(optimizer|lora_adapter|additional_chat_templates)$/;

/** One of these is in every such directory: of a model, an adapter, a checkpoint. */
const MARKS = ['config.json', 'adapter_config.json', 'engine.json'];

/** What is not complete yet has a name that begins so. Nothing else does, so it may be deleted when nobody writes. */
export const TEMPORARY = '.incomplete_';

/**
 * Writes a directory so that at any instant it is either absent (or as it was) or complete: `write` fills a temporary
 * directory beside the target, which is synced to disk and renamed. On failure nothing of it is left. A target inside a directory that is
 * itself not complete yet is written in place: who writes that one syncs and renames the whole.
 */
export async function writeDirectory(
  target: string,
  write: (temporary: string) => Promise<void>,
): Promise<void> {
  const final = path.resolve(target);
  const parent = path.dirname(final);
  const temporary = path.join(
    parent,
    `${TEMPORARY}${path.basename(final)}_${randomBytes(6).toString('hex')}`,
  );
  checkReplaceable(final);
  const nested = parent.split(path.sep).some((name) => name.startsWith(TEMPORARY));
  const written = nested ? final : temporary;
  try {
    makeDirectories(parent);
    if (nested) rmSync(final, { recursive: true, force: true });
    mkdirSync(written);
    await write(written);
    if (nested) return;
    syncTree(temporary);
    publish(temporary, final);
  } catch (e) {
    if (existsSync(written)) rmSync(written, { recursive: true });
    throw asTroupeError(e, `write ${final}`);
  }
}

/** Writes one small file; who writes the directory syncs it. */
export function writeSmallFile(file: string, content: string | Uint8Array): void {
  try {
    writeFileSync(file, content);
  } catch (e) {
    throw asTroupeError(e, `write ${file}`);
  }
}

/** Errors of the file system in our own terms: a full disk is NO_SPACE, all else IO. `left`: what became of what was written. */
export function asTroupeError(e: unknown, what: string, left = 'nothing was left behind'): TroupeError {
  if (e instanceof TroupeError) return e;
  const { code, message } = e as NodeJS.ErrnoException;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new TroupeError('NO_SPACE', `cannot ${what}: the disk is full (${message}); ${left}`, {
      cause: e,
    });
  }
  const hint =
    (code === 'EACCES' || code === 'EPERM' || code === 'EROFS') && !what.startsWith('read ')
      ? '; choose a directory that this user may write to'
      : '';
  return new TroupeError('IO', `cannot ${what}: ${message ?? String(e)}${hint}`, { cause: e });
}

/** @throws TroupeError IO naming what {@link writeDirectory} would have to delete of what is not an earlier save */
export function checkReplaceable(final: string): void {
  if (!existsSync(final)) return;
  if (!statSync(final).isDirectory()) {
    throw new TroupeError(
      'IO',
      `cannot write ${final}: expected a directory or nothing there, but it is a file`,
    );
  }
  const present = readdirSync(final);
  if (present.length === 0) return;
  const saved = MARKS.some((mark) => present.includes(mark));
  const code = new Set(codeIn(final));
  const foreign = saved ? present.find((name) => !OURS.test(name) && !code.has(name)) : present[0];
  if (foreign !== undefined) {
    throw new TroupeError(
      'IO',
      `cannot write ${final}: it holds '${foreign}', which a save would delete; choose another directory`,
    );
  }
}

/** Python files that the config.json of a directory names, which are saved with it. */
function codeIn(dir: string): string[] {
  const file = path.join(dir, 'config.json');
  try {
    if (!statSync(file).isFile()) return [];
    const config: unknown = JSON.parse(withoutNames(readFileSync(file, 'utf8')));
    return codeFiles(Object(config) as Record<string, unknown>);
  } catch {
    return [];
  }
}

/** Renames a synced directory to its final name beside it. An earlier save is moved aside first, and removed when the new one is on disk. */
export function publish(temporary: string, final: string): void {
  const there = lstatSync(final, { throwIfNoEntry: false });
  // Only an empty directory gives its place to another one; a link gives none.
  if (there === undefined || (there.isDirectory() && readdirSync(final).length === 0)) {
    renameSync(temporary, final);
    syncPath(path.dirname(final));
    return;
  }
  const old = `${temporary}_old`;
  renameSync(final, old);
  try {
    renameSync(temporary, final);
  } catch (e) {
    renameSync(old, final);
    throw e;
  }
  syncPath(path.dirname(final));
  rmSync(old, { recursive: true, force: true });
}

/** Flushes what is below `dir`, and itself, to the disk: a synced file in an unsynced directory can vanish. */
export function syncTree(dir: string): void {
  for (const entry of readdirSync(dir, { withFileTypes: true })) {
    const at = path.join(dir, entry.name);
    if (entry.isDirectory()) syncTree(at);
    else syncPath(at);
  }
  syncPath(dir);
}

/** Flushes a file or the entries of a directory to the disk. */
export function syncPath(at: string): void {
  const fd = openSync(at, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
