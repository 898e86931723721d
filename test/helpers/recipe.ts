// Programs of Troupe that a test ends at some instant, and what they leave in their directories.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { Command, type Exit, listTree } from './e2e_process';
import type { Workspace } from './e2e_workspace';
import { readLines } from './observed_run';

/** A way to train, and the metrics of a run of it that nothing happens to. */
export class Recipe {
  private static runs = 0;
  private undisturbed: Promise<string> | null = null;

  constructor(
    private readonly workspace: Workspace,
    readonly overrides: readonly string[],
    private readonly program: 'train' | 'sft' = 'train',
  ) {}

  /** Starts a run, or goes on with it. */
  start(directory: string, env: Record<string, string> = {}): Command {
    return new Command(this.command(directory), { env });
  }

  /** Arguments of `troupe`. */
  command(directory: string): string[] {
    const overrides = [...this.overrides, `trainer.default_local_dir=${directory}`];
    return [this.program, this.workspace.file(`${this.program}.yaml`), ...overrides];
  }

  newDirectory(): string {
    return this.workspace.file(`run_${Recipe.runs++}`);
  }

  /** Runs to the end, as a run that nothing happens to. */
  async finish(directory: string): Promise<Exit> {
    await this.whole();
    const exit = await this.start(directory).exited;
    expect(exit).toMatchObject({ code: 0, stderr: '' });
    await this.expectWhole(directory);
    return exit;
  }

  /** Expects metrics.jsonl to be that of an undisturbed run, byte for byte, and nothing half-written. */
  async expectWhole(directory: string): Promise<void> {
    expect(metrics(directory)).toBe(metrics(await this.whole()));
    const leftovers = listTree(directory).filter((path) => /incomplete/.test(path));
    expect(leftovers).toEqual([]);
  }

  /** The directory of an undisturbed run. */
  whole(): Promise<string> {
    this.undisturbed ??= this.runUndisturbed();
    return this.undisturbed;
  }

  private async runUndisturbed(): Promise<string> {
    const directory = this.newDirectory();
    const exit = await this.start(directory).exited;
    expect(exit).toMatchObject({ code: 0, stderr: '' });
    return directory;
  }
}

export const metrics = (directory: string): string => readFileSync(`${directory}/metrics.jsonl`, 'utf8');

/** Which rank failed in which phase, by failure. */
export const faults = (directory: string): string[] =>
  (existsSync(`${directory}/faults.jsonl`) ? readLines(`${directory}/faults.jsonl`) : [])
    .filter(({ phase }) => phase !== undefined)
    .map(({ rank, phase }) => `${rank} in ${phase}`);

export const latest = (directory: string): string =>
  readFileSync(`${directory}/latest_checkpointed_iteration.txt`, 'utf8');

/** Files of the checkpoints of a run; those with tensors by what they hold, as others tell the directory. */
export const checkpoints = (directory: string): string[] => {
  const sum = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex');
  const paths = listTree(directory).filter((path) => path.startsWith('global_step'));
  return paths.map((path) =>
    path.endsWith('.safetensors') ? `${path} ${sum(`${directory}/${path}`)}` : path,
  );
};

/** How often workers of a run with TROUPE_TRACE_NATIVE_CALLS have begun a call. */
export const nativeCalls = (directory: string, name: string): number =>
  listTree(`${directory}/logs`)
    .filter((file) => statSync(`${directory}/logs/${file}`).isFile())
    .map((file) => readFileSync(`${directory}/logs/${file}`, 'utf8').split(`] ${name}(`).length - 1)
    .reduce((sum, count) => sum + count, 0);
