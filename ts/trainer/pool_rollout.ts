// Our own engine in workers that do nothing but generate, and the way of the weights to them.
import { Actor } from '../actor/actor';
import type { ResolvedConfig } from '../config/config';
import type { WorkerGroup } from '../controller/worker_group';
import { engineOptions, trainedOptions } from '../roles/role_options';
import { rolloutSettings } from '../roles/role_settings';
import type { NativeRolloutConfig } from '../rollout/native/native_options';

/**
 * The actor's model once more, without gradients and moments, in a pool of workers of its own. With adapters it has these beside the
 * model, as the actor does, so that both compute the same numbers, and they alone are brought to it.
 */
export class PoolRollout {
  /** With the weights of the model directory; none of the actor's until {@link sync}. */
  static async create(
    config: ResolvedConfig,
    trained: Actor,
    group: WorkerGroup,
    rollout: NativeRolloutConfig,
  ): Promise<PoolRollout> {
    const settings = rolloutSettings(config);
    const generating = await Actor.create({
      ...engineOptions(settings, group, config),
      ...trainedOptions(settings, 0),
      rollout,
    });
    return new PoolRollout(trained, generating);
  }

  private constructor(
    private readonly trained: Actor,
    /** In the pool. */
    readonly generating: Actor,
  ) {}

  get engine(): Actor['rollout'] {
    return this.generating.rollout;
  }

  /** Brings the weights of now; requests in flight stand still meanwhile, and go on with them. */
  async sync(version: number): Promise<void> {
    const { lora, predictions } = this.trained.engine;
    const drafts = predictions === 'trained' && this.generating.engine.predictions !== null;
    const buckets = this.trained.exportWeights({
      ...(lora === null ? {} : { lora: 'adapter' }),
      ...(drafts ? { predictions: true } : {}),
    });
    await this.engine.updateWeights({ kind: 'buckets', buckets }, version);
  }
}
