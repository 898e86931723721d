// What an engine allocates: native/engine/memory_simulation.cc in a worker process of its own, asked once for each question.
import { WorkerGroup } from '../controller/worker_group';
import type { NativeEngineOptions, NativeMemoryWork, NativeSimulatedMemory } from '../native/bridge';

/** Of rank 0 of `worldSize`. */
export interface MemoryQuestion {
  options: NativeEngineOptions;
  worldSize: number;
  work: NativeMemoryWork;
  gpu: boolean;
}

/** Starts its worker with the first question. */
export class EngineMemory {
  private readonly answers = new Map<string, Promise<NativeSimulatedMemory>>();
  private group: Promise<WorkerGroup> | null = null;

  /** Closes what was started when `work` is over. */
  static async use<T>(work: (engines: EngineMemory) => Promise<T>): Promise<T> {
    const engines = new EngineMemory();
    try {
      return await work(engines);
    } finally {
      await engines.close();
    }
  }

  /** @throws TroupeError NATIVE_UNAVAILABLE, with what to do, where the engine is not installed */
  ask(question: MemoryQuestion): Promise<NativeSimulatedMemory> {
    const key = JSON.stringify(question);
    const known = this.answers.get(key);
    if (known !== undefined) return known;
    const answer = this.simulate(question);
    this.answers.set(key, answer);
    return answer;
  }

  private async simulate({ options, worldSize, work, gpu }: MemoryQuestion): Promise<NativeSimulatedMemory> {
    // Not one of the run's workers, beside which it may work.
    const env = { TROUPE_TITLE: 'troupe planner' };
    this.group ??= WorkerGroup.launch({ worldSize: 1, device: 'cpu', launcher: { env } });
    const group = await this.group;
    return await group.callBinding('simulateMemory', [options, 0, worldSize, work, gpu]);
  }

  async close(): Promise<void> {
    const group = await this.group?.catch(() => null);
    await group?.close();
  }
}
