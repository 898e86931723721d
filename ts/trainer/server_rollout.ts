// Responses from inference servers: making them ready, and giving them the weights of each step.
import path from 'node:path';
import type { Actor } from '../actor/actor';
import { GroupGuard } from '../base/group_guard';
import { hasPacked } from '../checkpoint/packed_tensor';
import type { ResolvedConfig } from '../config/config';
import { asynchrony } from '../config/derived/asynchrony';
import { workersPerMachine } from '../config/derived/pools';
import { Tokenizer } from '../data/tokenizer';
import { GivenServer, type InferenceServer, ManagedServer } from '../rollout/remote/inference_server';
import { RemoteRollout } from '../rollout/remote/remote_rollout';
import type { ServerProtocol } from '../rollout/remote/server_protocol';
import { SglangProtocol } from '../rollout/remote/sglang';
import { TgiProtocol } from '../rollout/remote/tgi';
import { tgiEndTokenIds } from '../rollout/remote/tgi_ends';
import { VllmProtocol } from '../rollout/remote/vllm';
import { RolloutWeights, weightsPlace } from './rollout_weights';
import { serverGpus } from './server_gpus';
import { serverLimits } from './server_limits';

/** Weights go through a directory that both sides see; those of now stay there, because a server that comes back asks for them again. */
export class ServerRollout {
  /** Resolves once all servers answer. @throws TroupeError COMM */
  static async start(
    config: ResolvedConfig,
    actor: Actor,
    { dtype, device }: { dtype: 'float32' | 'bfloat16'; device: 'cpu' | 'cuda' },
    say: (line: string) => void,
  ): Promise<ServerRollout> {
    const { rollout } = config.actor_rollout_ref;
    const { server } = rollout;
    const protocol = protocolOf(config, actor);
    // vLLM's CPU build does not take new weights of a head that is the embedding.
    const untied =
      rollout.mode === 'managed' &&
      rollout.name === 'vllm' &&
      device === 'cpu' &&
      actor.engine.model.config.tiedEmbeddings;
    const { directory, owned } = weightsPlace(config);
    const weights = new RolloutWeights(actor, directory, { owned, untied }, say);
    // Servers of others may be somebody else's, too. On a CPU only an end gives memory back, which is what TGI is brought to anyway.
    const releases =
      rollout.mode === 'managed' &&
      rollout.free_cache_engine &&
      asynchrony(config) === null &&
      (device === 'cuda' || !protocol.reloads);
    weights.clear();
    // Which matrices there are, and how they lie in memory, is settled when a server starts, by the config.json that it starts with.
    const { ownHead, stored } = actor.engine.model;
    const started = untied || ownHead || hasPacked(stored);
    const model = started ? await weights.write(0) : path.resolve(config.actor_rollout_ref.model.path);
    try {
      const servers = serversOf(config, { dtype, device, model, releases }, protocol);
      const engine = await RemoteRollout.connect({
        protocol,
        servers,
        vocabSize: actor.engine.model.config.vocabSize,
        eosTokenIds: actor.eosTokenIds,
        maxTokens: actor.engine.model.config.maxPositions,
        maxConcurrency: server.max_concurrency,
        recoveryMs: 1000 * server.recovery_timeout,
        say,
      });
      say(`responses come from ${servers.length} ${rollout.name} server${servers.length === 1 ? '' : 's'}`);
      return new ServerRollout(engine, weights, releases);
    } catch (error) {
      weights.remove();
      throw error;
    }
  }

  private constructor(
    readonly engine: RemoteRollout,
    private readonly weights: RolloutWeights,
    private readonly releases: boolean,
  ) {}

  /** Writes the weights of now and has the servers take them. */
  async sync(version: number): Promise<void> {
    const directory = await this.weights.write(version);
    await this.engine.updateWeights({ kind: 'directory', path: directory }, version);
    this.weights.keepOnly(directory);
  }

  /** Nothing is generated for now: servers of our own give back what memory they can. */
  async release(): Promise<void> {
    if (this.releases) await this.engine.release();
  }

  async close(): Promise<void> {
    await this.engine.close();
    this.weights.remove();
  }
}

function protocolOf(config: ResolvedConfig, actor: Actor): ServerProtocol {
  const { model, rollout } = config.actor_rollout_ref;
  if (rollout.name === 'vllm') return new VllmProtocol();
  if (rollout.name === 'sglang') return new SglangProtocol(actor.eosTokenIds);
  const tokenizer = Tokenizer.load(model.tokenizer_path ?? model.path);
  return new TgiProtocol(tokenizer, tgiEndTokenIds(model.path, tokenizer));
}

interface ServerModel {
  dtype: 'float32' | 'bfloat16';
  device: 'cpu' | 'cuda';
  model: string;
  releases: boolean;
}

function serversOf(
  config: ResolvedConfig,
  { dtype, device, model, releases }: ServerModel,
  protocol: ServerProtocol,
): InferenceServer[] {
  const { rollout } = config.actor_rollout_ref;
  const { server, mode } = rollout;
  if (mode === 'server') {
    const key = server.api_key_env === null ? null : (process.env[server.api_key_env] ?? null);
    return (server.addresses ?? []).map((address) => new GivenServer(protocol, address, key));
  }
  const tensorParallel = rollout.tensor_model_parallel_size ?? 1;
  const guard = new GroupGuard();
  const none = Array<null>(server.count).fill(null);
  // Servers that go on while the policy learns have GPUs of their own.
  const taken = asynchrony(config) === null ? 0 : workersPerMachine(config);
  const places =
    device === 'cuda' ? serverGpus({ servers: server.count, each: tensorParallel, taken }) : none;
  return places.map(
    (gpus, i) =>
      new ManagedServer(
        protocol,
        {
          model,
          dtype,
          ...serverLimits(config, device),
          maxConcurrency: server.max_concurrency,
          seed: config.trainer.seed,
          tensorParallel,
          gpus,
          releases,
          command: server.command ?? [],
          args: server.args ?? [],
          log: path.resolve(config.trainer.default_local_dir, 'logs', `${protocol.name}_${i + 1}.log`),
        },
        guard,
      ),
  );
}
