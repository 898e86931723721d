import { ConfigError, TroupeError } from '../../../ts/errors';
import { fromWireError, isBindingMethod, isEngineMethod, toWireError } from '../../../ts/worker/protocol';

describe('errors on the wire', () => {
  test('a native error keeps its code and message', () => {
    const native = Object.assign(new Error('[packing] too long'), { troupeCode: 'INVALID_ARGUMENT' });
    const error = fromWireError(toWireError(native), 2);
    expect(error).toBeInstanceOf(TroupeError);
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', message: '[packing] too long' });
    expect(error.stack).toContain('in worker rank 2:');
  });

  test('our own errors keep their class', () => {
    expect(fromWireError(toWireError(new ConfigError('bad key')), 0)).toBeInstanceOf(ConfigError);
    expect(toWireError(new TroupeError('IO', 'no file'))).toMatchObject({ code: 'IO', message: 'no file' });
  });

  test('anything else is INTERNAL', () => {
    expect(toWireError('odd')).toEqual({ code: 'INTERNAL', message: 'odd', stack: null });
    expect(toWireError(undefined)).toMatchObject({ code: 'INTERNAL', message: 'undefined' });
    expect(toWireError(Object.assign(new Error('x'), { code: 'ENOENT' }))).toMatchObject({
      code: 'INTERNAL',
    });
  });
});

test('only functions of the binding can be called by name', () => {
  expect(isEngineMethod('updatePolicy')).toBe(true);
  expect(isBindingMethod('policyLoss')).toBe(true);
  for (const name of ['constructor', 'toString', 'abort', 'close', 'createEngine']) {
    expect(isEngineMethod(name) || isBindingMethod(name)).toBe(false);
  }
});
