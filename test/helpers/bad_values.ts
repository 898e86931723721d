// What a program in JavaScript may pass where something else is wanted.

/** An array over memory that was transferred: empty, as if it had never held anything. */
export function detached(): Float32Array {
  const array = new Float32Array(4);
  structuredClone(array, { transfer: [array.buffer] });
  return array;
}

const circle: Record<string, unknown> = {};
circle['itself'] = circle;

/** By name, of every kind: none is a sensible name, list, record, count or function at once. */
export const BAD_VALUES: Readonly<Record<string, unknown>> = {
  undefined: undefined,
  null: null,
  true: true,
  negative: -1,
  fraction: 1.5,
  NaN: Number.NaN,
  infinity: Number.POSITIVE_INFINITY,
  huge: 1e300,
  bigint: 10n,
  text: 'abc',
  symbol: Symbol('s'),
  function: () => 1,
  'an empty array': [],
  'an array of null': [null],
  'an array of texts': ['a', 'b'],
  'a ragged array': [[1], [1, 2], []],
  'an array with holes': new Array(3),
  'an object': {},
  'an object without a prototype': Object.create(null),
  'an object that claims to be long': { length: 1e9 },
  'an object whose length is no number': { length: Number.NaN },
  'an object that is part of itself': circle,
  'an object without text': {
    toString: () => {
      throw new Error('no text');
    },
  },
  'a date': new Date(Number.NaN),
  'a map': new Map([['a', 1]]),
  'a promise': Promise.resolve({}),
  'an ArrayBuffer': new ArrayBuffer(8),
  'a DataView': new DataView(new ArrayBuffer(8)),
  'a BigInt64Array': new BigInt64Array(3),
  'a detached array': detached(),
};
