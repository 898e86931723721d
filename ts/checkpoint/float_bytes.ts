import type { FloatDtype } from './write_plan';

// Floating-point tensors as bytes, from one dtype to another: exactly, or rounded to nearest even as LibTorch does it.

export type FloatConversion =
  | { bytes: Uint8Array; bad: null }
  /** The first value that is NaN or infinite, or (`overflow`) would be after rounding. */
  | { bytes: null; bad: { index: number; overflow: boolean } };

/** The bits of an infinity of each dtype: all exponent bits. */
const EXPONENT: Readonly<Record<FloatDtype, number>> = { F32: 0x7f800000, BF16: 0x7f80, F16: 0x7c00 };

/**
 * `source` holds whole elements and begins at a multiple of their size in its buffer. Nothing is rounded to F16: `to` is F32, BF16, or what
 * `from` is.
 */
export function convertFloats(
  source: Uint8Array,
  from: FloatDtype,
  to: 'F32' | 'BF16' | 'same',
): FloatConversion {
  if (from === 'F32' && to === 'BF16') return narrowed(bitsOf(source, from));
  const bits = bitsOf(source, from);
  const bad = firstNotFinite(bits, EXPONENT[from]);
  if (bad !== null) return { bytes: null, bad: { index: bad, overflow: false } };
  if (to === 'same' || to === from) return { bytes: source, bad: null };
  const wide = from === 'F16' ? halvesWidened(bits) : widened(bits);
  if (to === 'BF16') return narrowed(wide);
  return { bytes: bytesOf(wide), bad: null };
}

// A loop for each kind of array and conversion, so that the engine compiles it for that one.

/** Signed where they have 32 bits: those are integers to the engine, and the others floating-point numbers. */
type Bits = Int32Array | Uint16Array;

const bitsOf = ({ buffer, byteOffset, length }: Uint8Array, dtype: FloatDtype): Bits =>
  dtype === 'F32'
    ? new Int32Array(buffer, byteOffset, length / 4)
    : new Uint16Array(buffer, byteOffset, length / 2);

const bytesOf = ({ buffer }: Bits): Uint8Array => new Uint8Array(buffer);

function firstNotFinite(bits: Bits, exponent: number): number | null {
  for (let i = 0; i < bits.length; i++) if (((bits[i] as number) & exponent) === exponent) return i;
  return null;
}

/** float32 in bfloat16. */
function narrowed(bits: Bits): FloatConversion {
  const { F32, BF16 } = EXPONENT;
  const out = new Uint16Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const x = bits[i] as number;
    const rounded = ((x + 0x7fff + ((x >>> 16) & 1)) | 0) >>> 16;
    const finite = (x & F32) !== F32;
    // A NaN may round to anything.
    if (!finite || (rounded & BF16) === BF16) return { bytes: null, bad: { index: i, overflow: finite } };
    out[i] = rounded;
  }
  return { bytes: bytesOf(out), bad: null };
}

/** bfloat16 in float32. */
function widened(bits: Bits): Int32Array {
  const out = new Int32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = (bits[i] as number) << 16;
  return out;
}

/** float16 in float32. */
function halvesWidened(bits: Bits): Int32Array {
  const out = new Int32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = halfToFloat32(bits[i] as number);
  return out;
}

const scratch = new Float32Array(1);
const scratchBits = new Int32Array(scratch.buffer);

function halfToFloat32(x: number): number {
  const sign = (x & 0x8000) << 16;
  const magnitude = x & 0x7fff;
  // Normal numbers have another bias; the others are multiples of 2^-24.
  if (magnitude >= 0x400) return sign | ((magnitude << 13) + ((127 - 15) << 23));
  scratch[0] = magnitude * 2 ** -24;
  return sign | (scratchBits[0] as number);
}
