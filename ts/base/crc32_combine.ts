// The CRC-32 of two pieces of a file from those of each, so that a file and what lies in it are read once.

/** Bits are reflected, as in zlib: the highest is the coefficient of x^0. */
const POLYNOMIAL = 0xedb88320;
const ONE = 0x80000000;
/** x^8: one byte further. */
const BYTE = 0x00800000;

/**
 * CRC-32 (zlib's) of a followed by b, from `a` and `b`, theirs; b has `length` bytes. A CRC is the remainder of the message as a polynomial
 * over GF(2), so what comes later multiplies by x^(8 length); starting value and final inversion cancel.
 */
export const crc32Combine = (a: number, b: number, length: number): number =>
  (times(power(length), a) ^ b) >>> 0;

/** x^(8 n) modulo the polynomial, by squaring. */
function power(n: number): number {
  let [result, square] = [ONE, BYTE];
  for (let left = n; left > 0; left = Math.floor(left / 2)) {
    if (left % 2 === 1) result = times(square, result);
    square = times(square, square);
  }
  return result;
}

/** Product modulo the polynomial. */
function times(a: number, b: number): number {
  let [product, shifted] = [0, b];
  for (let bit = 31; bit >= 0; bit--) {
    if ((a >>> bit) & 1) product ^= shifted;
    shifted = shifted & 1 ? (shifted >>> 1) ^ POLYNOMIAL : shifted >>> 1;
  }
  return product >>> 0;
}
