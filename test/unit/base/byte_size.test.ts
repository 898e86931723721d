import { formatBytes, parseByteSize } from '../../../ts/base/byte_size';

describe('sizes', () => {
  test.each([
    ['80GiB', 80 * 2 ** 30],
    ['80 GB', 80e9],
    ['1.5TiB', 1.5 * 2 ** 40],
    ['512mib', 512 * 2 ** 20],
    ['1024B', 1024],
  ])('%s', (text, bytes) => {
    expect(parseByteSize(text)).toBe(bytes);
  });

  test.each(['80', '', 'GiB', '-1GiB', '0GiB', '80 gigabytes', '1e3GB'])('%j is refused', (text) => {
    expect(parseByteSize(text)).toBeNull();
  });

  test('formatted in the largest unit', () => {
    expect([0, 1023, 1536, 80 * 2 ** 30, -(2 ** 20)].map(formatBytes)).toEqual([
      '0 B',
      '1023 B',
      '1.50 KiB',
      '80.00 GiB',
      '-1.00 MiB',
    ]);
  });
});
