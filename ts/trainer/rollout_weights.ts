// Weights of each step on the disk, for servers to read.
import { existsSync, readdirSync, rmdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import type { Actor } from '../actor/actor';
import { TEMPORARY } from '../base/atomic_dir';
import { makeDirectories } from '../base/make_directories';
import { reasonOf } from '../base/text';
import { untieHead } from '../checkpoint/untie_head';

/** Names of versions, whole or not. */
const LEFT = new RegExp(`^(${TEMPORARY.replace('.', '\\.')})?version_\\d+`);

/** Weights on their way, each version in a directory of its own. */
export class RolloutWeights {
  private readonly written = new Set<string>();

  constructor(
    private readonly actor: Pick<Actor, 'saveModel'>,
    private readonly directory: string,
    /** `owned`: nobody else has anything there. `untied`: the embedding is written as the head, too. */
    private readonly kind: { owned: boolean; untied: boolean },
    private readonly say: (line: string) => void,
  ) {}

  /** What a run that was killed has left goes, where it cannot be another one's: nobody asks for it any more. */
  clear(): void {
    if (!this.kind.owned || !existsSync(this.directory)) return;
    this.tryRemoving(() => {
      for (const name of readdirSync(this.directory))
        if (LEFT.test(name)) rmSync(path.join(this.directory, name), { recursive: true, force: true });
    });
  }

  async write(version: number): Promise<string> {
    const target = path.join(this.directory, `version_${version}`);
    makeDirectories(this.directory);
    // Of a run that was stopped here, where the directory is not ours alone, or what servers of our own have started with.
    rmSync(target, { recursive: true, force: true });
    await this.actor.saveModel(target);
    if (this.kind.untied) untieHead(target);
    this.written.add(target);
    return target;
  }

  keepOnly(kept: string): void {
    for (const directory of this.written) {
      if (directory === kept) continue;
      this.tryRemoving(() => {
        rmSync(directory, { recursive: true, force: true });
        this.written.delete(directory);
      });
    }
  }

  remove(): void {
    this.keepOnly('');
    // Others may use the directory, too.
    this.tryRemoving(() => {
      if (existsSync(this.directory) && readdirSync(this.directory).length === 0) rmdirSync(this.directory);
    });
  }

  /** What stays takes space, and is no reason to end a run. */
  private tryRemoving(remove: () => void): void {
    try {
      remove();
    } catch (error) {
      this.say(`warning: [rollout] old weights could not be removed: ${reasonOf(error)}`);
    }
  }
}
