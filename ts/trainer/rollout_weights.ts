// Weights of each step on the disk, for servers to read.
import { existsSync, lstatSync, readdirSync, realpathSync, rmdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import type { Actor } from '../actor/actor';
import { TEMPORARY } from '../base/atomic_dir';
import { makeDirectories } from '../base/make_directories';
import { reasonOf } from '../base/text';
import { untieHead } from '../checkpoint/untie_head';
import type { ResolvedConfig } from '../config/config';
import { usesServers } from '../config/derived/rollout_place';
import type { RunConfig } from '../run/config_changes';

/** In the directory of a run, which has it for itself. */
const OWN = 'rollout_weights';
/** Names of versions, whole or not, as saveModel writes them. */
const LEFT = new RegExp(`^(version_\\d+|${TEMPORARY.replace('.', '\\.')}version_\\d+_[0-9a-f]+(_old)?)$`);

/** Where a run with servers writes its weights, absolute; `owned`: nobody else has anything there. */
export function weightsPlace({ trainer, actor_rollout_ref: { rollout } }: ResolvedConfig): {
  directory: string;
  owned: boolean;
} {
  const { weights_dir: given } = rollout.server;
  return {
    directory: path.resolve(given ?? path.join(trainer.default_local_dir, OWN)),
    owned: given === null,
  };
}

/**
 * What a session with servers that was killed has left in the directory of a run goes, where this session has none that read it. Only when the
 * directory is this session's. A link stays, and what it leads to: that may be others', too.
 */
export function removeUnusedWeights(config: RunConfig, say: (line: string) => void): void {
  const own = path.resolve(config.trainer.default_local_dir, OWN);
  tryRemoving(say, () => {
    if (lstatSync(own, { throwIfNoEntry: false })?.isDirectory() !== true) return;
    if ('actor_rollout_ref' in config && usesServers(config)) {
      const { directory } = weightsPlace(config);
      if (existsSync(directory) && realpathSync(directory) === realpathSync(own)) return;
    }
    removeVersions(own);
    removeEmpty(own);
  });
}

function removeVersions(directory: string): void {
  for (const name of readdirSync(directory))
    if (LEFT.test(name)) rmSync(path.join(directory, name), { recursive: true, force: true });
}

function removeEmpty(directory: string): void {
  if (existsSync(directory) && readdirSync(directory).length === 0) rmdirSync(directory);
}

/** What stays takes space, and is no reason to end a run. */
function tryRemoving(say: (line: string) => void, remove: () => void): void {
  try {
    remove();
  } catch (error) {
    say(`warning: [rollout] old weights could not be removed: ${reasonOf(error)}`);
  }
}

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
    tryRemoving(this.say, () => removeVersions(this.directory));
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
      tryRemoving(this.say, () => {
        rmSync(directory, { recursive: true, force: true });
        this.written.delete(directory);
      });
    }
  }

  remove(): void {
    this.keepOnly('');
    // Others may use the directory, too.
    tryRemoving(this.say, () => removeEmpty(this.directory));
  }
}
