import { reasonOf, show, toJson } from '../../../ts/base/text';

it('a reason is text, whatever was thrown', () => {
  const thrown = (message: () => unknown): Error =>
    Object.defineProperty(new Error('x'), 'message', { get: message });
  expect(reasonOf(new Error('why'))).toBe('why');
  expect(reasonOf('plain')).toBe('plain');
  expect(reasonOf(null)).toBe('null');
  expect(reasonOf(thrown(() => 5))).toBe('5');
  const trap = (): never => {
    throw new Error('trap');
  };
  for (const what of [thrown(trap), thrown(() => Object.create(null)), new Proxy({}, { get: trap })])
    expect(reasonOf(what)).toBe('something that has no text');
});

it('what JSON has no number for is a text in it', () => {
  const value = { a: [Number.NaN, -Infinity], b: 2n ** 64n, c: 0.5 };
  const json = '{"a":["NaN","-Infinity"],"b":"18446744073709551616","c":0.5}';
  expect(toJson(value)).toBe(json);
  expect(show({ a: Infinity })).toBe('{"a":"Infinity"}');
});
