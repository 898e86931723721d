import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { DistillationOptions } from '../../ts/actor/distillation_options';
import { type PolicyLossOptions, resolvePolicyLoss } from '../../ts/actor/update_options';
import type { DistillationLoss } from '../../ts/algorithms/names';
import { loadBinding } from '../../ts/native/loader';

// Loss, gradients and metrics of a distillation against verl's own functions in float64 on random cases: distillation_ppo_loss, and for forward_kl_topk
// compute_forward_kl_topk of its FSDP engine on logits, whose gradient is by the logits. Ours take float32 arrays, in which log-probs of
// about 4 are off by 2e-7: 1e-6 of the largest entry, or of 1 (gradients: 0.1) where that is more.

type Matrix = number[][];
interface Case {
  seed: number;
  mode: DistillationLoss;
  log_prob: Matrix;
  old_log_prob: Matrix;
  advantages: Matrix;
  mask: Matrix;
  ref_log_prob: Matrix;
  entropy: Matrix;
  is_weights: Matrix | null;
  teacher_log_probs: Matrix;
  teacher_ids?: Matrix;
  logits?: Matrix;
  actor: { loss_agg_mode: string; entropy_coeff: number; use_kl_loss: boolean };
  options: {
    loss_mode: DistillationLoss;
    topk: number;
    use_task_rewards: boolean;
    distillation_loss_coef: number;
    loss_max_clamp: number | null;
    log_prob_min_clamp: number | null;
    use_policy_gradient: boolean;
    clip_ratio_low: number;
    clip_ratio_high: number;
  };
  loss: number;
  grad: Matrix;
  grad_entropy: Matrix;
  grad_logits: Matrix | null;
  metrics: Record<string, number>;
}

const file = path.join(__dirname, '../fixtures/conformance/distillation.json');
const { cases } = JSON.parse(readFileSync(file, 'utf8')) as { cases: Case[] };
const binding = loadBinding();
const floats = (matrix: Matrix): Float32Array => Float32Array.from(matrix.flat());

function options(c: Case): PolicyLossOptions {
  const { actor, options: o } = c;
  const distillation: DistillationOptions = {
    mode: o.loss_mode,
    topK: o.topk,
    useTaskRewards: o.use_task_rewards,
    coef: o.distillation_loss_coef,
    lossMaxClamp: o.loss_max_clamp,
    logProbMinClamp: o.log_prob_min_clamp,
    usePolicyGradient: o.use_policy_gradient,
    clipRatioLow: o.clip_ratio_low,
    clipRatioHigh: o.clip_ratio_high,
  };
  return {
    aggregation: actor.loss_agg_mode as NonNullable<PolicyLossOptions['aggregation']>,
    clipRatioLow: 0.15,
    clipRatioHigh: 0.25,
    entropyCoeff: actor.entropy_coeff,
    useKlLoss: actor.use_kl_loss,
    klLossCoef: 0.1,
    klLossType: 'k3',
    distillation,
  };
}

/** What an engine's head knows of logits [n, V]: log-probs, at the teacher's tokens, and which of those are among the K likeliest. */
function studentTop(logits: Matrix, ids: Matrix) {
  const rows = logits.map((z) => {
    const most = Math.max(...z);
    const lse = most + Math.log(z.reduce((sum, x) => sum + Math.exp(x - most), 0));
    return z.map((x) => x - lse);
  });
  const likelier = (row: number[], id: number): number => row.filter((lp) => lp > (row[id] as number)).length;
  return {
    rows,
    logProbs: floats(ids.map((of, i) => of.map((id) => rows[i]?.[id] as number))),
    amongTop: Uint8Array.from(
      ids.flatMap((of, i) => of.map((id) => (likelier(rows[i] as number[], id) < of.length ? 1 : 0))),
    ),
  };
}

const run = (c: Case) => {
  const top = c.logits && c.teacher_ids ? studentTop(c.logits, c.teacher_ids) : null;
  const rows = c.mask.length;
  const width = c.mask[0]?.length as number;
  return binding.policyLoss(
    {
      offsets: Int32Array.from({ length: rows + 1 }, (_, i) => i * width),
      responseMask: Uint8Array.from(c.mask.flat()),
      globalTokens: c.mask.flat().reduce((sum, bit) => sum + bit, 0),
      globalSequences: rows,
      logProbs: floats(c.log_prob),
      entropy: floats(c.entropy),
      oldLogProbs: floats(c.old_log_prob),
      advantages: floats(c.advantages),
      refLogProbs: floats(c.ref_log_prob),
      rolloutIsWeights: c.is_weights && floats(c.is_weights),
      givenLoss: null,
      teacherLogProbs: floats(c.teacher_log_probs),
      studentTop: top && { logProbs: top.logProbs, amongTop: top.amongTop },
    },
    resolvePolicyLoss('test', options(c), width),
  );
};

function expectClose(actual: ArrayLike<number>, expected: number[], least = 0.1): void {
  const scale = Math.max(least, ...expected.map(Math.abs));
  expect(actual.length).toBe(expected.length);
  const worst = expected.reduce(
    (most, value, i) => Math.max(most, Math.abs((actual[i] as number) - value)),
    0,
  );
  expect(worst / scale).toBeLessThan(1e-6);
}

/** verl's names on the left of what differs from ours. */
const OURS: Readonly<Record<string, string>> = {
  'actor/pg_loss': 'pg_loss',
  'actor/ppo_kl': 'ppo_kl',
  'actor/pg_clipfrac': 'pg_clipfrac',
  'actor/pg_clipfrac_lower': 'pg_clipfrac_lower',
  'actor/entropy_loss': 'entropy_loss',
};

test.each(cases)('case $seed: $mode', async (c) => {
  const result = await run(c);
  expectClose([result.loss], [c.loss], 1);
  expectClose(result.gradLogProbs, c.grad.flat());
  if (c.actor.entropy_coeff !== 0 && c.options.use_task_rewards)
    expectClose(result.gradEntropy as Float32Array, c.grad_entropy.flat());
  else expect(result.gradEntropy).toBeNull();
  for (const [name, value] of Object.entries(c.metrics)) {
    expectClose([result.metrics[OURS[name] ?? name] as number], [value], 1);
  }
  const distilled = (names: string[]) => names.filter((name) => name.startsWith('distillation/')).sort();
  expect(distilled(Object.keys(result.metrics))).toEqual(distilled(Object.keys(c.metrics)));
  if (c.logits === undefined || c.teacher_ids === undefined || c.grad_logits === null) return;
  // dz_j = sum_k g_k (1[j = id_k] - p_j)
  const ids = c.teacher_ids;
  const { rows } = studentTop(c.logits, ids);
  const by = result.gradTopLogProbs as Float32Array;
  const k = c.options.topk;
  const byLogits = rows.map((row, i) => {
    const own = [...by.subarray(i * k, (i + 1) * k)];
    const sum = own.reduce((a, b) => a + b, 0);
    return row.map((lp, j) => {
      const at = (ids[i] as number[]).indexOf(j);
      return (at < 0 ? 0 : (own[at] as number)) - sum * Math.exp(lp);
    });
  });
  expectClose(byLogits.flat(), c.grad_logits.flat());
});
