/** Numbers that are the same on every machine for one seed: the splitmix32 generator, and normals by Box and Muller (1958). */
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
    this.spare = null;
  }

  /** Uniform in (0, 1). */
  uniform() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (((z ^ (z >>> 15)) >>> 0) + 0.5) / 2 ** 32;
  }

  integer(limit) {
    return Math.floor(this.uniform() * limit);
  }

  normal() {
    if (this.spare !== null) {
      const value = this.spare;
      this.spare = null;
      return value;
    }
    const radius = Math.sqrt(-2 * Math.log(this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }
}

/** Of a pool; prime, so that rows of matrices are not alike. */
const POOL = 4_194_301;

/** Normals for arrays of billions, of which drawing each would take minutes: the same few millions over and over. */
export class NormalPool {
  /** @param {(values: Float32Array) => ArrayBufferView} encode what arrays are made of */
  constructor(random, encode) {
    this.numbers = encode(Float32Array.from({ length: POOL }, () => random.normal()));
    this.at = 0;
  }

  take(count) {
    const taken = new this.numbers.constructor(count);
    for (let filled = 0; filled < count; ) {
      const part = this.numbers.subarray(this.at, this.at + count - filled);
      taken.set(part, filled);
      filled += part.length;
      this.at = (this.at + part.length) % POOL;
    }
    return taken;
  }
}
