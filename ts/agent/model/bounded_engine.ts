// An engine whose sequences are no longer than a run wants them.
import type {
  PauseMode,
  RolloutEngine,
  RolloutHandle,
  RolloutStats,
  WeightSource,
} from '../../rollout/engine';
import type { RolloutRequest } from '../../rollout/request';

export class BoundedEngine implements RolloutEngine {
  constructor(
    private readonly inner: RolloutEngine,
    private readonly limit: number,
  ) {}

  get version(): number {
    return this.inner.version;
  }
  get maxTokens(): number {
    return Math.min(this.inner.maxTokens, this.limit);
  }
  get maxConcurrency(): number {
    return this.inner.maxConcurrency;
  }

  submit(request: RolloutRequest): RolloutHandle {
    return this.inner.submit(request);
  }
  pause(mode: PauseMode): Promise<void> {
    return this.inner.pause(mode);
  }
  resume(): Promise<void> {
    return this.inner.resume();
  }
  updateWeights(source: WeightSource, version: number): Promise<void> {
    return this.inner.updateWeights(source, version);
  }
  stats(): Promise<RolloutStats> {
    return this.inner.stats();
  }
  /** The engine is somebody else's. */
  async close(): Promise<void> {}
}
