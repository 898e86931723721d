import { runInNewContext } from 'node:vm';
import { TroupeError } from '../../../ts/errors';
import type { NativeBinding, NativeEngine } from '../../../ts/native/bridge';
import { wrapBinding } from '../../../ts/native/wrap_binding';

/** An error of another realm with a code, as native code makes it. */
function foreignError(message: string, troupeCode: string | undefined): unknown {
  const error = runInNewContext('new Error(message)', { message }) as { troupeCode?: string };
  if (troupeCode) error.troupeCode = troupeCode;
  return error;
}

function bindingThat(fails: () => unknown): NativeBinding {
  return { buildInfo: fails, close: fails } as unknown as NativeBinding;
}

const engine = {} as NativeEngine;

test('thrown errors become TroupeErrors with the native code', () => {
  const cause = foreignError('[packing] too long', 'INVALID_ARGUMENT');
  const binding = wrapBinding(
    bindingThat(() => {
      throw cause;
    }),
    { trace: false },
  );
  const error = catchError(() => binding.buildInfo());
  expect(error).toBeInstanceOf(TroupeError);
  expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', message: '[packing] too long', cause });
});

test('rejections become TroupeErrors, also those of promises from another realm', async () => {
  const error = foreignError('engine closed', 'CLOSED');
  const reject = runInNewContext('(error) => Promise.reject(error)') as (error: unknown) => unknown;
  const binding = wrapBinding(
    bindingThat(() => reject(error)),
    { trace: false },
  );
  await expect(binding.close(engine)).rejects.toBeInstanceOf(TroupeError);
  await expect(binding.close(engine)).rejects.toMatchObject({ code: 'CLOSED' });
});

test('an error without a code is a bug in the core: INTERNAL', () => {
  const binding = wrapBinding(
    bindingThat(() => {
      throw foreignError('boom', undefined);
    }),
    { trace: false },
  );
  expect(catchError(() => binding.buildInfo())).toMatchObject({ code: 'INTERNAL', message: 'boom' });
});

test('results pass through unchanged', async () => {
  const values = new Float32Array([1, 2]);
  const native = {
    buildInfo: () => values,
    close: () => Promise.resolve(values),
  } as unknown as NativeBinding;
  const binding = wrapBinding(native, { trace: false });
  expect(binding.buildInfo()).toBe(values);
  await expect(binding.close(engine)).resolves.toBe(values);
});

test('tracing logs each call with its arguments in short, and how it ended', async () => {
  const lines: string[] = [];
  const spy = jest.spyOn(console, 'error').mockImplementation((line: string) => void lines.push(line));
  const native = {
    getTensor: async () => new Float32Array(3),
    computeValues: async () => {
      throw foreignError('no', 'CLOSED');
    },
  } as unknown as NativeBinding;
  const binding = wrapBinding(native, { trace: true });
  await binding.getTensor(engine, 'param', 'head');
  const batch = {
    tokens: new Int32Array(9),
    seqOffsets: new Int32Array(2),
    promptLens: new Int32Array(1),
    routedExperts: null,
    images: null,
  };
  await expect(binding.computeValues(engine, batch)).rejects.toThrow('no');
  spy.mockRestore();
  expect(lines[0]).toMatch(/^\[native #\d+\] getTensor\(\{ {2}\}, "param", "head"\)$/);
  expect(lines[1]).toMatch(/getTensor done in [\d.]+ ms$/);
  expect(lines[2]).toContain('tokens: Int32Array(9)');
  expect(lines[3]).toMatch(/computeValues failed in .*no/);
});

function catchError(body: () => unknown): unknown {
  try {
    body();
  } catch (error) {
    return error;
  }
  throw new Error('nothing was thrown');
}
