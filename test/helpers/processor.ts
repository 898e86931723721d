import { readFileSync } from 'node:fs';

// What native/kernels/cpu has for the processor of the tests.
const has = (feature: string): boolean =>
  new RegExp(`^flags\\s*:.* ${feature}( |$)`, 'm').test(readFileSync('/proc/cpuinfo', 'utf8'));

/** Products of float32 are our own: log-probs of a rollout have the bits of computeLogProb. */
export const OWN_PRODUCTS = has('avx2');
/** The same in bfloat16. */
export const OWN_BFLOAT16_PRODUCTS = has('avx512_bf16');
/** Products read codes of 8 bits. */
export const CODE_PRODUCTS = has('avx512f');
