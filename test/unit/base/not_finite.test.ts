import { notFinite } from '../../../ts/base/not_finite';

test.each<[unknown, string, number]>([
  [Number.NaN, '', Number.NaN],
  [{ a: 1, b: -Infinity, c: Number.NaN }, 'b', -Infinity],
  [[1, [2, Infinity]], '[1][1]', Infinity],
  [{ a: [{ b: { c: Number.NaN } }] }, 'a[0].b.c', Number.NaN],
  [{ a: { toJSON: () => ({ b: Infinity }) } }, 'a.b', Infinity],
  [{ a: 2n ** 70n, b: Float32Array.of(1, Number.NaN) }, 'b.1', Number.NaN],
])('%p', (value, at, number) => {
  expect(notFinite(value)).toEqual({ at, number });
});

test('what JSON has is fine', () => {
  expect(notFinite({ a: [1, null, 'NaN', true, 5n], b: undefined })).toBeNull();
});
