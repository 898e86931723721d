import { ConfigError, TroupeError } from '../../../ts/errors';
import { fromWireError, isBindingMethod, isEngineMethod, toWireError } from '../../../ts/worker/protocol';
import { encodeMessage, MessageDecoder } from '../../../ts/worker/transport';

describe('transport', () => {
  const message = {
    type: 'result' as const,
    requestId: 3,
    value: {
      logProbs: Float32Array.of(-0.5, Number.NaN, -0),
      tokens: Int32Array.of(1, -2),
      mask: Uint8Array.of(1, 0, 1),
      seeds: BigUint64Array.of(2n ** 64n - 1n),
      entropy: null,
      metrics: [{ pg_loss: 0.1 }],
    },
  };

  test('a message is one frame and keeps the types of its arrays', () => {
    const frames = [...encodeMessage(message)];
    expect(frames).toHaveLength(1);
    expect(new MessageDecoder().push(frames[0]!)).toEqual(message);
  });

  test.each([1, 7, 100])('a message longer than %i bytes is cut up and put together again', (longest) => {
    const frames = [...encodeMessage(message, longest)];
    expect(frames.length).toBeGreaterThan(1);
    const decoder = new MessageDecoder();
    for (let round = 0; round < 2; round++) {
      const results = frames.map((frame) => decoder.push(frame));
      expect(results.slice(0, -1).every((result) => result === null)).toBe(true);
      expect(results.at(-1)).toEqual(message);
    }
  });
});

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
