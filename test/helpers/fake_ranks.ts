// Workers of a rollout without a model: they keep the rules of native/engine/rank_engine_rollout.cc, one call after the other, and stop where
// a test says so. A token of version v is made by weights v, unless the engine above has lost count.
import type { RoleEngine } from '../../ts/engine/role_engine';
import type { NativeRolloutOptions, NativeRolloutOutput } from '../../ts/native/bridge';
import type { NativeRolloutConfig } from '../../ts/rollout/native/native_options';
import { NativeRollout } from '../../ts/rollout/native/native_rollout';
import type { RolloutCommands, RolloutTurn } from '../../ts/worker/kept_responses';

interface Made {
  id: number;
  /** What the token was told to carry, and what the weights are. */
  version: number;
  weights: number;
}

export class FakeRank {
  readonly made: Made[] = [];
  readonly turns: RolloutCommands[] = [];
  readonly live = new Map<number, { left: number }>();
  weights = 0;
  opened: NativeRolloutOptions | null = null;
  /** Thrown by the next turn, which has taken its commands in. */
  failure: Error | null = null;
  /** Thrown by beginRollout. */
  cannotBegin: Error | null = null;
  /** The weights are held in the form that steps need. */
  decoding = false;
  private version = 0;
  private queue: Promise<unknown> = Promise.resolve();
  private readonly gates = new Map<
    string,
    { opened: Promise<void>; open: () => void; reached: () => void }
  >();

  /** Calls of this method wait from now on; `reached`: one does. */
  hold(method: string): { reached: Promise<void>; open: () => void } {
    let [open, arrive] = [() => {}, () => {}];
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    const reached = new Promise<void>((resolve) => {
      arrive = resolve;
    });
    this.gates.set(method, { opened, open, reached: arrive });
    return {
      reached,
      open: () => {
        this.gates.delete(method);
        open();
      },
    };
  }

  call(method: string, args: readonly unknown[]): Promise<unknown> {
    const result = this.queue.then(async () => {
      const gate = this.gates.get(method);
      gate?.reached();
      await gate?.opened;
      // The engine's thread is another one.
      await new Promise((resolve) => setImmediate(resolve));
      return this.run(method, args);
    });
    this.queue = result.catch(() => undefined);
    return result;
  }

  private run(method: string, args: readonly unknown[]): unknown {
    switch (method) {
      case 'openRollout':
        this.opened = args[0] as NativeRolloutOptions;
        return this.stats();
      case 'beginRollout':
        if (this.cannotBegin !== null) throw this.cannotBegin;
        this.decoding = true;
        this.version = args[0] as number;
        return undefined;
      case 'parkRollout':
        this.decoding = false;
        return undefined;
      case 'importTensors':
        this.decoding = false;
        this.weights = args[0] as number;
        return undefined;
      case 'rolloutTurn':
        return this.turn(args[0] as RolloutCommands);
      default:
        throw new Error(`no worker has a ${method}`);
    }
  }

  private turn(commands: RolloutCommands): RolloutTurn {
    this.turns.push(commands);
    const outputs: NativeRolloutOutput[] = [];
    for (const { id, sampling } of commands.submit) this.live.set(id, { left: sampling.maxNewTokens });
    for (const id of commands.abort) if (this.live.delete(id)) outputs.push(this.output(id, 'abort', 0));
    if (this.failure !== null) {
      const failure = this.failure;
      this.failure = null;
      throw failure;
    }
    for (const [id, request] of this.decoding ? this.live : []) {
      request.left--;
      this.made.push({ id, version: this.version, weights: this.weights });
      if (request.left === 0) this.live.delete(id);
      outputs.push(this.output(id, request.left === 0 ? 'length' : 'none', 1));
    }
    return { outputs, ended: [], stats: this.stats(), ready: this.decoding, idle: this.live.size === 0 };
  }

  private output(id: number, finish: NativeRolloutOutput['finish'], count: number): NativeRolloutOutput {
    return {
      ...{
        id,
        finish,
        version: this.version,
        cachedTokens: 0,
        error: null,
        nonFinite: false,
        needsMask: false,
      },
      ...{ tokens: new Int32Array(count).fill(1), logProbs: new Float32Array(count) },
      ...{ topTokens: new Int32Array(0), topLogProbs: new Float32Array(0) },
      ...{ promptLogProbs: null, routedExperts: null },
    };
  }

  private stats(): RolloutTurn['stats'] {
    const none = {
      promptTokens: 0,
      cachedPromptTokens: 0,
      generatedTokens: 0,
      drafts: 0,
      draftedTokens: 0,
      acceptedTokens: 0,
      hostChoices: 0,
      preemptions: 0,
    };
    return {
      ...none,
      ...{
        steps: 0,
        computedTokens: 0,
        waiting: 0,
        pagesHeld: 0,
        pagesIndexed: 0,
        cacheBytes: 0,
        version: 0,
      },
      ...{ running: this.live.size, pages: 1000 },
    };
  }
}

/** The engine over `count` of them, on `hosts`; a reload gives rank by rank the weights of the next number. */
export function rolloutOverRanks(count: number, config: NativeRolloutConfig = {}, hosts = 1) {
  const ranks = Array.from({ length: count }, () => new FakeRank());
  let loaded = 0;
  const group = {
    worldSize: count,
    ranksPerHost: count / hosts,
    failure: null,
    callRank: (rank: number, _: string, method: string, args: unknown[]) => ranks[rank]?.call(method, args),
    callRanks: (together: number[], _: string, method: string, args: (rank: number) => unknown[]) =>
      Promise.all(together.map((rank) => ranks[rank]?.call(method, args(rank)))),
    callAll: (_: string, method: string, args: (rank: number) => unknown[]) =>
      Promise.all(ranks.map((rank, i) => rank.call(method, args(i)))),
  };
  const engine = {
    ...{ group, name: 'actor', device: 'cpu', isOpen: true, memory: {}, checkOpen: () => {} },
    replacement: null as Promise<void> | null,
    generatingRanks: ranks.map((_, rank) => [rank]),
    model: { dir: '', eosTokenIds: [], config: { vocabSize: 10, maxPositions: 100_000, moe: null } },
    reload: () => group.callAll('actor', 'importTensors', () => [loaded + 1]).then(() => void loaded++),
  };
  return { ranks, engine, rollout: new NativeRollout(engine as unknown as RoleEngine, config) };
}
