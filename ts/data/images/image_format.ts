// Which files are images that are read.

/** What files begin with, in hexadecimal; a dot is any digit. */
const BEGINNINGS: readonly RegExp[] = [
  /^89504e470d0a1a0a/, // PNG
  /^ffd8ff/, // JPEG
  /^52494646.{8}57454250/, // WebP
  /^47494638(37|39)61/, // GIF
  /^(4949(2a|2b)00|4d4d00(2a|2b))/, // TIFF and BigTIFF, of either order of bytes
];

/** By its first bytes: whether it is a PNG, JPEG, WebP, GIF or TIFF. */
export function isImageFile(bytes: Uint8Array): boolean {
  const first = Buffer.from(bytes.buffer, bytes.byteOffset, Math.min(bytes.length, 12)).toString('hex');
  return BEGINNINGS.some((beginning) => beginning.test(first));
}
