// What an engine allocates: native/engine/memory_simulation.cc in a worker process of its own, asked once for each question.
import { WorkerGroup } from '../controller/worker_group';
import { TroupeError } from '../errors';
import type { NativeEngineOptions, NativeMemoryWork, NativeSimulatedMemory } from '../native/bridge';

/** Of one rank of `worldSize`. */
export interface MemoryQuestion {
  options: NativeEngineOptions;
  rank: number;
  worldSize: number;
  work: NativeMemoryWork;
  gpu: boolean;
}

/** Starts its worker with the first question. */
export class EngineMemory {
  private readonly answers = new Map<string, Promise<NativeSimulatedMemory>>();
  private group: Promise<WorkerGroup> | null = null;

  private closed = false;

  /** Closes what was started when `work` is over, or when `stop` says so: what is asked then rejects. */
  static async use<T>(work: (engines: EngineMemory) => Promise<T>, stop?: AbortSignal): Promise<T> {
    const engines = new EngineMemory();
    const close = (): void => void engines.close();
    stop?.addEventListener('abort', close);
    try {
      return await work(engines);
    } finally {
      stop?.removeEventListener('abort', close);
      await engines.close();
    }
  }

  /** @throws TroupeError NATIVE_UNAVAILABLE, with what to do, where the engine is not installed; CLOSED after close() */
  ask(question: MemoryQuestion): Promise<NativeSimulatedMemory> {
    if (this.closed) return Promise.reject(new TroupeError('CLOSED', 'the plan was given up'));
    const key = JSON.stringify(question);
    const known = this.answers.get(key);
    if (known !== undefined) return known;
    const answer = this.simulate(question);
    this.answers.set(key, answer);
    return answer;
  }

  private async simulate({
    options,
    rank,
    worldSize,
    work,
    gpu,
  }: MemoryQuestion): Promise<NativeSimulatedMemory> {
    // Not one of the run's workers, beside which it may work.
    const env = { TROUPE_TITLE: 'troupe planner' };
    this.group ??= WorkerGroup.launch({ worldSize: 1, device: 'cpu', launcher: { env }, closeTimeoutMs: 0 });
    const group = await this.group;
    return await group.callBinding('simulateMemory', [options, rank, worldSize, work, gpu]);
  }

  /** Waits for no answer. */
  async close(): Promise<void> {
    this.closed = true;
    const group = await this.group?.catch(() => null);
    await group?.close();
  }
}
