// Bicubic resampling with antialiasing, byte for byte as Image.resize(BICUBIC) of Pillow before 13, which transformers' image processors
// call. From 13 on it takes the columns first where an image loses much more of its height than of its width.

/** Bits of a weight behind the point, as in Pillow: 8 of a byte, and 2 to spare, in 32. */
const PRECISION = 22;
/** The kernel of Keys (1981) with a = -0.5 reaches so far. */
const SUPPORT = 2;
const A = -0.5;

function kernel(x: number): number {
  const d = Math.abs(x);
  if (d < 1) return ((A + 2) * d - (A + 3)) * d * d + 1;
  if (d < 2) return (((d - 5) * d + 8) * d - 4) * A;
  return 0;
}

/** For each of `to` places along an axis of `from`: the first that it is made of, and the integer weights of it and those behind. */
interface Axis {
  first: Int32Array;
  count: Int32Array;
  weights: Int32Array; // [to * widest]
  widest: number;
}

function axisOf(from: number, to: number): Axis {
  const scale = from / to;
  // Where pixels are lost the kernel is stretched over all that it stands for.
  const stretch = Math.max(1, scale);
  const support = SUPPORT * stretch;
  const widest = Math.ceil(support) * 2 + 1;
  const first = new Int32Array(to);
  const count = new Int32Array(to);
  const weights = new Int32Array(to * widest);
  const own = new Float64Array(widest);
  for (let place = 0; place < to; place++) {
    const center = (place + 0.5) * scale;
    const begin = Math.max(0, Math.trunc(center - support + 0.5));
    const size = Math.min(from, Math.trunc(center + support + 0.5)) - begin;
    let sum = 0;
    for (let x = 0; x < size; x++) {
      own[x] = kernel((x + begin - center + 0.5) * (1 / stretch));
      sum += own[x] as number;
    }
    for (let x = 0; x < size; x++) {
      const weight = sum === 0 ? (own[x] as number) : (own[x] as number) / sum;
      weights[place * widest + x] = Math.trunc(weight * 2 ** PRECISION + (weight < 0 ? -0.5 : 0.5));
    }
    first[place] = begin;
    count[place] = size;
  }
  return { first, count, weights, widest };
}

/** Rounded, and cut to a byte. */
const byteOf = (sum: number): number => {
  const value = sum >> PRECISION;
  return Math.min(Math.max(value, 0), 255);
};

/** Channels of pixels in rows, from `height` x `width` to another size: the rows first, then the columns, bytes between. */
export function resizeBicubic(
  pixels: Uint8Array,
  height: number,
  width: number,
  newHeight: number,
  newWidth: number,
  channels = 3,
): Uint8Array {
  const rows =
    newWidth === width
      ? pixels
      : along(pixels, axisOf(width, newWidth), { lines: height, places: width, beside: channels });
  if (newHeight === height) return rows === pixels ? pixels.slice() : rows;
  return along(rows, axisOf(height, newHeight), { lines: 1, places: height, beside: newWidth * channels });
}

/** Bytes by line, by place along an axis, and by what lies beside each other at a place. */
interface Lines {
  lines: number;
  places: number;
  beside: number;
}

function along(source: Uint8Array, axis: Axis, { lines, places, beside }: Lines): Uint8Array {
  const { first, count, weights, widest } = axis;
  const out = new Uint8Array(lines * first.length * beside);
  for (let line = 0; line < lines; line++) {
    for (let place = 0; place < first.length; place++) {
      const from = (line * places + (first[place] as number)) * beside;
      const to = (line * first.length + place) * beside;
      const size = count[place] as number;
      for (let c = 0; c < beside; c++) {
        let sum = 1 << (PRECISION - 1);
        for (let k = 0; k < size; k++)
          sum += (source[from + k * beside + c] as number) * (weights[place * widest + k] as number);
        out[to + c] = byteOf(sum);
      }
    }
  }
  return out;
}
