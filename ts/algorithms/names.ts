// Names under which configurations and options ask for a variant of a formula.

/** How per-token losses become one number. */
export const AGGREGATIONS = [
  'token-mean',
  'token-sum',
  'seq-mean-token-sum',
  'seq-mean-token-mean',
  'seq-mean-token-sum-norm',
] as const;
export type Aggregation = (typeof AGGREGATIONS)[number];

/** Estimators of the KL; kl, mse and low_var_kl are other names of k1, k2 and k3. */
const KL_BASES = ['kl', 'k1', 'abs', 'mse', 'k2', 'low_var_kl', 'k3'] as const;
export type KlBase = (typeof KL_BASES)[number];
/** What a policy learns from a teacher by: an estimator of the KL of sampled tokens, or the KL over the teacher's likeliest tokens. */
export const DISTILLATION_LOSSES = [...KL_BASES, 'forward_kl_topk'] as const;
export type DistillationLoss = (typeof DISTILLATION_LOSSES)[number];
/** With a "+", which gives a loss the gradient of k2. */
export const KL_KINDS = [...KL_BASES, ...KL_BASES.map((base) => `${base}+` as const)] as const;
