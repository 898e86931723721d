import { reasonOf } from '../../../ts/base/text';

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
