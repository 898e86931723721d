// Responses from inference servers: making them ready, and giving them the weights of each step.
import { rmSync } from 'node:fs';
import path from 'node:path';
import type { Actor } from '../actor/actor';
import { makeDirectories } from '../base/make_directories';
import type { ResolvedConfig } from '../config/config';
import { Tokenizer } from '../data/tokenizer';
import type { RolloutEngine } from '../rollout/engine';
import { GivenServer, type InferenceServer, ManagedServer } from '../rollout/remote/inference_server';
import { RemoteRollout } from '../rollout/remote/remote_rollout';
import type { ServerProtocol } from '../rollout/remote/server_protocol';
import { SglangProtocol } from '../rollout/remote/sglang';
import { TgiProtocol } from '../rollout/remote/tgi';
import { VllmProtocol } from '../rollout/remote/vllm';

/** Weights go through a directory that both sides see: one per version, of which the newest stays while a server may ask for it again. */
export class ServerRollout {
  private previous: string | null = null;

  /** Resolves once all servers answer. @throws TroupeError COMM */
  static async start(
    config: ResolvedConfig,
    actor: Actor,
    dtype: 'float32' | 'bfloat16',
    say: (line: string) => void,
  ): Promise<ServerRollout> {
    const { rollout } = config.actor_rollout_ref;
    const { server } = rollout;
    const protocol = protocolOf(config, actor);
    const servers = serversOf(config, dtype, protocol);
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
    const directory = server.weights_dir ?? path.join(config.trainer.default_local_dir, 'rollout_weights');
    return new ServerRollout(engine, actor, path.resolve(directory));
  }

  private constructor(
    readonly engine: RolloutEngine,
    private readonly actor: Actor,
    private readonly directory: string,
  ) {}

  /** Writes the weights of now and has the servers take them. */
  async sync(version: number): Promise<void> {
    makeDirectories(this.directory);
    const target = path.join(this.directory, `version_${version}`);
    // Of a run that was stopped here.
    rmSync(target, { recursive: true, force: true });
    await this.actor.saveModel(target);
    await this.engine.updateWeights({ kind: 'directory', path: target }, version);
    if (this.previous !== null && this.previous !== target)
      rmSync(this.previous, { recursive: true, force: true });
    this.previous = target;
  }

  async close(): Promise<void> {
    await this.engine.close();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

function protocolOf(config: ResolvedConfig, actor: Actor): ServerProtocol {
  const { model, rollout } = config.actor_rollout_ref;
  if (rollout.name === 'vllm') return new VllmProtocol();
  if (rollout.name === 'sglang') return new SglangProtocol();
  return new TgiProtocol(Tokenizer.load(model.tokenizer_path ?? model.path), actor.eosTokenIds);
}

function serversOf(
  config: ResolvedConfig,
  dtype: 'float32' | 'bfloat16',
  protocol: ServerProtocol,
): InferenceServer[] {
  const { model, rollout } = config.actor_rollout_ref;
  const { server, mode } = rollout;
  if (mode === 'server') {
    const key = server.api_key_env === null ? null : (process.env[server.api_key_env] ?? null);
    return (server.addresses ?? []).map((address) => new GivenServer(protocol, address, key));
  }
  return Array.from(
    { length: server.count },
    (_, i) =>
      new ManagedServer(protocol, {
        model: path.resolve(model.path),
        dtype,
        maxTokens: config.data.max_prompt_length + config.data.max_response_length,
        seed: config.trainer.seed,
        command: server.command ?? [],
        args: server.args ?? [],
        log: path.resolve(config.trainer.default_local_dir, 'logs', `${protocol.name}_${i + 1}.log`),
      }),
  );
}
