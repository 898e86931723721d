import { TroupeError } from '../errors';
import type { NativeBinding, NativeEngine } from '../native/bridge';
import { KeptResponses, type RolloutCommands } from './kept_responses';
import { type ProfileOrder, Profiling } from './profiling';
import {
  type BindingMethod,
  type EngineMethod,
  isBindingMethod,
  isEngineMethod,
  type WorkRequest,
} from './protocol';

type AnyFunction = (...args: unknown[]) => unknown;

interface HostedEngine {
  native: NativeEngine;
  kept: KeptResponses;
}

/** The named engines of one worker process ('actor', 'critic', 'ref', ...) over the native binding. */
export class EngineHost {
  readonly #binding: NativeBinding;
  readonly #engines = new Map<string, HostedEngine>();
  readonly #profiling: Profiling;

  constructor(binding: NativeBinding) {
    this.#binding = binding;
    this.#profiling = new Profiling(binding);
  }

  /** Does one request; the caller sends them one after another. */
  async serve(request: WorkRequest): Promise<unknown> {
    switch (request.type) {
      case 'createEngine': {
        if (this.#engines.has(request.engine)) {
          throw new TroupeError('INVALID_ARGUMENT', `the engine '${request.engine}' exists already`);
        }
        const native = await this.#binding.createEngine(request.options);
        this.#engines.set(request.engine, { native, kept: new KeptResponses() });
        return null;
      }
      case 'callEngine': {
        if (!isEngineMethod(request.method)) throw unknownMethod(request.method);
        const { engine: name, method, args } = request;
        const engine = this.#engine(name);
        return await this.#profiling.around(name, method, () => this.#call(engine, method, args));
      }
      case 'closeEngine': {
        const engine = this.#engines.get(request.engine);
        this.#engines.delete(request.engine);
        if (engine !== undefined) await this.#binding.close(engine.native);
        return null;
      }
      case 'callBinding': {
        if (!isBindingMethod(request.method)) throw unknownMethod(request.method);
        return await this.#callBinding(request.method, request.args);
      }
    }
  }

  abort(reason: string): void {
    for (const { native } of this.#engines.values()) this.#binding.abort(native, reason);
  }

  async close(): Promise<void> {
    const engines = [...this.#engines.values()];
    this.#engines.clear();
    await this.#profiling.drop();
    for (const { native } of engines) await this.#binding.close(native);
  }

  async #call({ native, kept }: HostedEngine, method: EngineMethod, args: unknown[]): Promise<unknown> {
    switch (method) {
      case 'rolloutTurn':
        return kept.turn(args[0] as RolloutCommands, (commands) =>
          this.#binding.rolloutTurn(native, commands),
        );
      case 'takeRollout':
        return kept.take(args[0] as number);
      case 'dropRollout':
        kept.drop(args[0] as number);
        return null;
      default: {
        const call = this.#binding[method] as AnyFunction;
        return await call(native, ...args);
      }
    }
  }

  async #callBinding(method: BindingMethod, args: unknown[]): Promise<unknown> {
    switch (method) {
      case 'beginProfile':
        await this.#profiling.begin(args[0] as ProfileOrder);
        return null;
      case 'endProfile':
        if (args[0] === true) return await this.#profiling.end();
        await this.#profiling.drop();
        return [];
      default: {
        const call = this.#binding[method] as AnyFunction;
        return await call(...args);
      }
    }
  }

  #engine(name: string): HostedEngine {
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
