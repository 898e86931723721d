import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { asTroupeError, TEMPORARY } from '../base/atomic_dir';
import { makeDirectories } from '../base/make_directories';
import { toJson } from '../base/text';
import { writeFileAtomic } from './checkpoint_store';

/** One generation in a dump: verl's keys, and what the reward function returned. */
export interface DumpRow extends Record<string, unknown> {
  step: number;
  input: string;
  output: string;
  gts: unknown;
  score: number;
}

const SAMPLES_PER_STEP = 4;

/**
 * Creates a directory and proves that it can be written, before any work starts. Returns its absolute path.
 * @throws TroupeError IO, NO_SPACE naming `key` of the configuration and the directory
 */
export function writableDirectory(key: string, path: string): string {
  const directory = resolve(path);
  const probe = join(directory, `${TEMPORARY}probe_${process.pid}`);
  try {
    makeDirectories(directory);
    writeFileSync(probe, 'x');
    rmSync(probe);
  } catch (error) {
    throw asTroupeError(error, `write to ${key} ${directory}`);
  }
  return directory;
}

/** The files of a run in `trainer.default_local_dir`, checkpoints apart. */
export class RunDirectory {
  readonly path: string;

  /** @throws TroupeError as {@link writableDirectory} */
  constructor(path: string) {
    this.path = writableDirectory('trainer.default_local_dir', path);
  }

  file(name: string): string {
    return join(this.path, name);
  }

  writeJson(name: string, value: unknown): void {
    writeFileAtomic(this.file(name), `${JSON.stringify(value, null, 2)}\n`);
  }

  /**
   * Drops the lines of a JSONL log that are later than `step`, and a last line cut short by a crash; all of
   * them for step 0. A resumed run then continues the file where its checkpoint stands.
   */
  rewindLog(name: string, step: number): void {
    const path = this.file(name);
    if (!existsSync(path)) return;
    const kept = readFileSync(path, 'utf8')
      .split('\n')
      .filter((line) => {
        const at = stepOf(line);
        return step > 0 && at !== null && at <= step;
      });
    writeFileAtomic(path, kept.map((line) => `${line}\n`).join(''));
  }

  /** A few generations of a step, always: samples/{name}.jsonl, evenly spread over the batch. */
  writeSamples(name: string, rows: readonly DumpRow[]): void {
    const stride = Math.max(1, Math.floor(rows.length / SAMPLES_PER_STEP));
    const chosen = rows.filter((_, i) => i % stride === 0).slice(0, SAMPLES_PER_STEP);
    writeDump(join(this.path, 'samples'), name, chosen);
  }
}

function stepOf(line: string): number | null {
  try {
    const { step } = JSON.parse(line) as { step?: unknown };
    return typeof step === 'number' ? step : null;
  } catch {
    return null;
  }
}

/** `directory`/{name}.jsonl, one row per line. */
export function writeDump(directory: string, name: string, rows: readonly DumpRow[]): void {
  const path = join(directory, `${name}.jsonl`);
  try {
    makeDirectories(resolve(directory));
    writeFileSync(path, rows.map((row) => `${toJson(row)}\n`).join(''));
  } catch (error) {
    rmSync(path, { force: true });
    throw asTroupeError(error, `write ${path}`);
  }
}
