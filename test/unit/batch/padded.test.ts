import { Batch } from '../../../ts/batch/batch';

/** A small linear congruential generator: tests must not depend on Math.random. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

describe('fromPadded and toPadded', () => {
  const padded = {
    inputIds: Int32Array.of(0, 1, 2, 7, 0, 3, 4, 5, 8, 9),
    attentionMask: [0, 1, 1, 1, 0, 1, 1, 1, 1, 1],
    responseLength: 2,
  };

  test('reads verl’s layout', () => {
    const b = Batch.fromPadded({
      ...padded,
      responseMask: [1, 0, 0, 1],
      columns: { advantages: [1, 99, 2, 3], score: [0.1, 0.2], mine: [5, 6, 7, 8] },
    });
    expect([...b.get('tokens')]).toEqual([1, 2, 7, 3, 4, 5, 8, 9]);
    expect([...b.promptLens]).toEqual([2, 3]);
    expect([...b.get('responseMask')]).toEqual([1, 0, 1]);
    expect([...b.get('advantages')]).toEqual([1, 2, 3]);
    expect(b.get('score')).toEqual([0.1, 0.2]);
    expect(b.granularity('mine')).toBe('response');
    expect([...b.toPadded('advantages')]).toEqual([1, 0, 2, 3]);
    expect([...b.toPadded('advantages', 3, -7)]).toEqual([1, -7, -7, 2, 3, -7]);
    expect(() => b.toPadded('advantages', 1)).toThrow(/below the longest response, 2/);
    expect(() => b.toPadded('uid')).toThrow(/no column 'uid'/);
    expect(() => b.toPadded('score')).toThrow(/one value per sequence/);
  });

  test('takes int64 ids and infers the batch size from the mask', () => {
    const b = Batch.fromPadded({ ...padded, inputIds: BigInt64Array.from([...padded.inputIds], BigInt) });
    expect(b.size).toBe(2);
    expect([...b.get('responseMask')]).toEqual([1, 1, 1]);
  });

  test('an all-ones mask needs the batch size', () => {
    const full = {
      inputIds: new Int32Array(12).fill(1),
      attentionMask: new Uint8Array(12).fill(1),
      responseLength: 1,
    };
    expect(() => Batch.fromPadded(full)).toThrow(/fits batch sizes 6, 4, 3, 2, 1: pass batchSize/);
    expect(Batch.fromPadded({ ...full, batchSize: 3 }).numResponseTokens).toBe(3);
  });

  const two = { batchSize: 2, inputIds: Int32Array.from({ length: 8 }, (_, i) => i), responseLength: 2 };
  test.each<[string, object, RegExp]>([
    [
      'mask value',
      { attentionMask: [1, 1, 2, 0, 1, 1, 1, 1] },
      /attentionMask, entry 2: expected 0 or 1 but got 2/,
    ],
    ['prompt hole', { attentionMask: [1, 0, 1, 0, 1, 1, 1, 1] }, /row 0, column 1: prompts are left-padded/],
    [
      'response hole',
      { attentionMask: [1, 1, 1, 0, 1, 1, 0, 1] },
      /row 1, column 3: responses are right-padded/,
    ],
    ['empty prompt', { attentionMask: [1, 1, 1, 0, 0, 0, 1, 1] }, /row 1: the prompt is empty/],
    ['ids shorter', { attentionMask: [1] }, /8 entries but attentionMask has 1/],
    [
      'mask outside',
      { attentionMask: [1, 1, 1, 0, 1, 1, 1, 1], responseMask: [1, 1, 1, 1] },
      /responseMask, row 0, column 1: is 1 where/,
    ],
    [
      'mask outside, behind its first column',
      {
        inputIds: Int32Array.of(0, 1, 5, 6, 7, 0, 1, 5, 6, 7),
        attentionMask: [0, 1, 1, 0, 0, 1, 1, 1, 1, 1],
        responseMask: [1, 0, 1, 1, 1, 1],
        responseLength: 3,
      },
      /responseMask, row 0, column 2: is 1 where/,
    ],
    [
      'column length',
      { attentionMask: new Uint8Array(8).fill(1), columns: { values: [1, 2, 3] } },
      /columns.values: expected 4 entries/,
    ],
    [
      'negative id',
      { attentionMask: new Uint8Array(8).fill(1), inputIds: new Int32Array(8).fill(-1) },
      /row 0, column 0: expected a token id but got -1/,
    ],
  ])('%s is an error', (_name, more, message) => {
    expect(() => Batch.fromPadded({ ...two, ...more } as never)).toThrow(message);
  });

  test('random batches survive the round trip', () => {
    const rng = random(1);
    for (let round = 0; round < 50; round++) {
      const B = 1 + Math.floor(rng() * 6);
      const P = 1 + Math.floor(rng() * 5);
      const R = 1 + Math.floor(rng() * 5);
      const S = P + R;
      const inputIds = new Int32Array(B * S);
      const attentionMask = new Uint8Array(B * S);
      const responseMask = new Uint8Array(B * R);
      const values = new Float32Array(B * R);
      for (let b = 0; b < B; b++) {
        const p = 1 + Math.floor(rng() * P);
        const r = Math.floor(rng() * (R + 1));
        for (let c = P - p; c < P + r; c++) {
          attentionMask[b * S + c] = 1;
          inputIds[b * S + c] = 1 + Math.floor(rng() * 100);
        }
        for (let t = 0; t < r; t++) {
          responseMask[b * R + t] = rng() < 0.8 ? 1 : 0;
          values[b * R + t] = rng();
        }
      }
      const b = Batch.fromPadded({
        inputIds,
        attentionMask,
        responseLength: R,
        responseMask,
        columns: { values },
      });
      expect([...b.toPadded('values', R)]).toEqual([...values]);
      expect([...b.toPadded('responseMask', R)]).toEqual([...responseMask]);
      const order = [...Array(B).keys()].sort(() => rng() - 0.5);
      const inverse = order.map((_, i) => order.indexOf(i));
      expect(b.reorder(order).reorder(inverse)).toEqual(b);
      const cut = Math.floor(rng() * (B + 1));
      expect(Batch.concat([b.slice(0, cut), b.slice(cut)])).toEqual(b);
      expect(Batch.concat(b.split(2))).toEqual(b);
      const tokens = [...Array(B).keys()].flatMap((i) => [...b.prompt(i), ...b.response(i)]);
      expect(tokens).toEqual([...b.get('tokens')]);
    }
  });
});
