import { Batch } from '../../../ts/batch/batch';
import { checkFinite } from '../../../ts/engine/finite_columns';

const COLUMNS = ['oldLogProbs', 'advantages'];

function batch(oldLogProbs: number[], mask = [1, 1, 1, 1, 1]): Batch {
  return Batch.fromSequences([[1], [1, 2], [3]], [[4, 5], [], [6, 7, 8]], {
    responseMask: mask,
    oldLogProbs,
    advantages: [0, 0, 0, 0, 0],
  });
}

test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
  '%s: the column and the place',
  (value) => {
    const b = batch([-1, -1, -1, value, -1]);
    const message = `column 'oldLogProbs' wherever responseMask is 1, got ${value} at response token 1 of sequence 2:`;
    let error: unknown;
    try {
      checkFinite('updatePolicy', b, COLUMNS);
    } catch (caught) {
      error = caught;
    }
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' });
    expect((error as Error).message).toContain(message);
    expect((error as Error).message).toContain('[updatePolicy] ');
  },
);

test('infinite advantages are left to the core, which skips the step; NaN is not', () => {
  const b = (value: number): Batch => Batch.fromSequences([[1]], [[2, 3]], { advantages: [0, value] });
  checkFinite('x', b(Number.NEGATIVE_INFINITY), COLUMNS);
  expect(() => checkFinite('x', b(Number.NaN), COLUMNS)).toThrow(/column 'advantages'/);
});

test('the first of several, with their number', () => {
  const b = batch([-1, Number.NaN, Number.NaN, -1, Number.NaN]);
  expect(() => checkFinite('x', b, COLUMNS)).toThrow(/at response token 1 of sequence 0 and 2 more/);
});

test('finite columns pass, absent ones and masked tokens too', () => {
  checkFinite('x', batch([-1, -1, -1, -1, -1]), [...COLUMNS, 'rolloutIsWeights']);
  checkFinite('x', batch([Number.NaN, -1, -1, -1, Number.NaN], [0, 1, 1, 1, 0]), COLUMNS);
});

test('one of many, wherever it is; the greatest and least numbers and zeros of both signs pass', () => {
  const length = 9001;
  const finite = [-0, 0, 3.4028234663852886e38, -3.4028234663852886e38, 1e-45, -1e-45, 1, -8.5];
  const values = Array.from({ length }, (_, t) => finite[t % finite.length] as number);
  const of = (column: number[]): Batch =>
    Batch.fromSequences([[1]], [new Array(length).fill(2)], { oldLogProbs: column });
  checkFinite('x', of(values), COLUMNS);
  for (const at of [0, 1, 2, 3, 4095, 4096, 8191, 9000]) {
    for (const wrong of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])
      expect(() => checkFinite('x', of(values.with(at, wrong)), COLUMNS)).toThrow(
        `at response token ${at} of`,
      );
  }
});
