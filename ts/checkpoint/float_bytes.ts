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
  const bits =
    from === 'F32'
      ? new Uint32Array(source.buffer, source.byteOffset, source.length / 4)
      : new Uint16Array(source.buffer, source.byteOffset, source.length / 2);
  const exponent = EXPONENT[from];
  for (let i = 0; i < bits.length; i++)
    if (((bits[i] as number) & exponent) === exponent)
      return { bytes: null, bad: { index: i, overflow: false } };
  if (to === 'same' || to === from) return { bytes: source, bad: null };
  const widen = from === 'F32' ? asIs : from === 'BF16' ? bfloat16ToFloat32 : halfToFloat32;
  if (to === 'F32') {
    const out = new Uint32Array(bits.length);
    for (let i = 0; i < bits.length; i++) out[i] = widen(bits[i] as number);
    return { bytes: new Uint8Array(out.buffer), bad: null };
  }
  const out = new Uint16Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const rounded = float32ToBfloat16(widen(bits[i] as number));
    if ((rounded & EXPONENT.BF16) === EXPONENT.BF16)
      return { bytes: null, bad: { index: i, overflow: true } };
    out[i] = rounded;
  }
  return { bytes: new Uint8Array(out.buffer), bad: null };
}

const asIs = (x: number): number => x;

const bfloat16ToFloat32 = (x: number): number => x << 16;

const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);

function halfToFloat32(x: number): number {
  const sign = (x & 0x8000) << 16;
  const magnitude = x & 0x7fff;
  // Normal numbers have another bias; the others are multiples of 2^-24.
  if (magnitude >= 0x400) return sign | ((magnitude << 13) + ((127 - 15) << 23));
  scratch[0] = magnitude * 2 ** -24;
  return sign | (scratchBits[0] as number);
}

/** Of finite numbers. */
const float32ToBfloat16 = (x: number): number => ((x >>> 0) + 0x7fff + ((x >>> 16) & 1)) >>> 16;
