import { TroupeError } from '../errors';
import type { NativeBinding, NativeEngine } from '../native/bridge';
import { isBindingMethod, isEngineMethod, type WorkRequest } from './protocol';

type AnyFunction = (...args: unknown[]) => unknown;

/** The named engines of one worker process ('actor', 'critic', 'ref', ...) over the native binding. */
export class EngineHost {
  readonly #binding: NativeBinding;
  readonly #engines = new Map<string, NativeEngine>();

  constructor(binding: NativeBinding) {
    this.#binding = binding;
  }

  /** Does one request; the caller sends them one after another. */
  async serve(request: WorkRequest): Promise<unknown> {
    switch (request.type) {
      case 'createEngine': {
        if (this.#engines.has(request.engine)) {
          throw new TroupeError('INVALID_ARGUMENT', `the engine '${request.engine}' exists already`);
        }
        this.#engines.set(request.engine, await this.#binding.createEngine(request.options));
        return null;
      }
      case 'callEngine': {
        if (!isEngineMethod(request.method)) throw unknownMethod(request.method);
        const call = this.#binding[request.method] as AnyFunction;
        return await call(this.#engine(request.engine), ...request.args);
      }
      case 'closeEngine': {
        const engine = this.#engines.get(request.engine);
        this.#engines.delete(request.engine);
        if (engine !== undefined) await this.#binding.close(engine);
        return null;
      }
      case 'callBinding': {
        if (!isBindingMethod(request.method)) throw unknownMethod(request.method);
        const call = this.#binding[request.method] as AnyFunction;
        return await call(...request.args);
      }
    }
  }

  abort(reason: string): void {
    for (const engine of this.#engines.values()) this.#binding.abort(engine, reason);
  }

  async close(): Promise<void> {
    const engines = [...this.#engines.values()];
    this.#engines.clear();
    for (const engine of engines) await this.#binding.close(engine);
  }

  #engine(name: string): NativeEngine {
    const engine = this.#engines.get(name);
    if (engine !== undefined) return engine;
    const known = [...this.#engines.keys()].map((key) => `'${key}'`).join(', ') || 'none';
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `there is no engine '${name}' in this worker; it has: ${known}`,
    );
  }
}

function unknownMethod(name: string): TroupeError {
  return new TroupeError(
    'INVALID_ARGUMENT',
    `the native binding has no function '${name}' to call from here`,
  );
}
