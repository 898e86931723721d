import { types } from 'node:util';
import { type ErrorCode, TroupeError } from '../errors';
import type { NativeBinding } from './bridge';

/** An error as it comes from native code: a plain Error, perhaps of another realm, with the code as a property. */
interface NativeError {
  message?: unknown;
  troupeCode?: unknown;
}

/**
 * The binding with every error rebuilt as a TroupeError of this realm. Nothing here or above may use
 * `instanceof` on native values: under Jest they belong to another realm.
 */
export function wrapBinding(binding: NativeBinding, options: { trace: boolean }): NativeBinding {
  const wrapped: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(binding)) {
    if (typeof value !== 'function') wrapped[name] = value;
    else wrapped[name] = wrapFunction(name, value as AnyFunction, options.trace);
  }
  return wrapped as unknown as NativeBinding;
}

type AnyFunction = (...args: unknown[]) => unknown;

let callCount = 0;

function wrapFunction(name: string, native: AnyFunction, trace: boolean): AnyFunction {
  return (...args) => {
    const call = trace ? traceCall(name, args) : null;
    let result: unknown;
    try {
      result = native(...args);
    } catch (error) {
      call?.(error);
      throw rebuildError(error);
    }
    if (!types.isPromise(result)) {
      call?.(null);
      return result;
    }
    // Wrapped in a promise of this realm, so that callers may rely on its prototype.
    return Promise.resolve(result).then(
      (value) => {
        call?.(null);
        return value;
      },
      (error: unknown) => {
        call?.(error);
        throw rebuildError(error);
      },
    );
  };
}

function rebuildError(error: unknown): TroupeError {
  const native = (typeof error === 'object' && error !== null ? error : {}) as NativeError;
  const message = typeof native.message === 'string' ? native.message : String(error);
  const code = typeof native.troupeCode === 'string' ? (native.troupeCode as ErrorCode) : 'INTERNAL';
  return new TroupeError(code, message, { cause: error });
}

/** Logs the call to stderr and returns what to call at its end. */
function traceCall(name: string, args: unknown[]): (error: unknown) => void {
  callCount += 1;
  const label = `[native #${callCount}] ${name}`;
  const start = performance.now();
  console.error(`${label}(${args.map((arg) => summarise(arg, 2)).join(', ')})`);
  return (error) => {
    const elapsed = `${(performance.now() - start).toFixed(1)} ms`;
    console.error(
      error === null ? `${label} done in ${elapsed}` : `${label} failed in ${elapsed}: ${String(error)}`,
    );
  };
}

function summarise(value: unknown, depth: number): string {
  if (ArrayBuffer.isView(value)) {
    const array = value as unknown as { length?: number };
    return `${Object.prototype.toString.call(value).slice(8, -1)}(${array.length ?? value.byteLength})`;
  }
  if (Array.isArray(value))
    return value.length > 8 || depth === 0
      ? `Array(${value.length})`
      : `[${value.map((item) => summarise(item, depth - 1)).join(', ')}]`;
  if (typeof value === 'object' && value !== null) {
    if (depth === 0) return '{…}';
    const fields = Object.entries(value).map(([key, field]) => `${key}: ${summarise(field, depth - 1)}`);
    return `{ ${fields.join(', ')} }`;
  }
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}
