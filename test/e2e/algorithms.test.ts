import { readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Batch } from '../../ts/batch/batch';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { runCommand } from '../helpers/e2e_process';
import { BATCH, Workspace } from '../helpers/e2e_workspace';
import { type ObservedRun, observeRun, readLines } from '../helpers/observed_run';
import { readSafetensors } from '../helpers/safetensors';

// Every algorithm for a few steps in real workers. The advantages that reached the policy are computed again here, from
// rewards, values and entropies, by formulas of their own; so is the first loss, which at a ratio of exactly 1 is a closed formula.

const STEPS = 3;
const SIZE = BATCH.prompts * BATCH.n;

let workspace: Workspace;
let runs = 0;
/** Names of all metrics of all runs. */
const seen = new Set<string>();
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

/** The share of 7s, less a little for length; acc: whether the answer starts with 7, 8 or 9. */
const reward: RewardFunction = ({ response }) => ({
  score: [...response].filter((c) => c === '7').length / 8 - response.length / 64,
  acc: /^[789]/.test(response),
  brevity: -response.length,
});

/** One optimiser step per training step, no KL term: the first ratio of every step is 1. */
const ON_POLICY = [
  `actor_rollout_ref.actor.ppo_mini_batch_size=${BATCH.prompts}`,
  'actor_rollout_ref.actor.use_kl_loss=false',
  'actor_rollout_ref.actor.optim.lr_warmup_steps=0',
  `trainer.total_training_steps=${STEPS}`,
  'trainer.save_freq=-1',
  'trainer.logger=[]',
];

async function run(...overrides: string[]): Promise<ObservedRun> {
  const directory = workspace.file(`run_${runs++}`);
  const all = [...ON_POLICY, ...overrides, `trainer.default_local_dir=${directory}`];
  const observed = await observeRun(workspace.file('train.yaml'), all, reward);
  expect(observed.result).toMatchObject({ step: STEPS, interrupted: false });
  expect(observed.updates.map(({ batch }) => batch.size)).toEqual([SIZE, SIZE, SIZE]);
  for (const line of observed.metrics) {
    // A number that is not finite is written as a string.
    for (const [name, value] of Object.entries(line)) expect([name, typeof value]).toEqual([name, 'number']);
  }
  for (const [step, line] of stepsOf(observed).entries()) {
    const onPolicy = observed.updates[step]?.options.miniBatchSize === SIZE;
    expect(line['actor/ppo_kl'] === 0).toBe(onPolicy);
    if (onPolicy) expect(line['actor/pg_clipfrac']).toBe(0);
    expect(line['actor/grad_norm']).toBeGreaterThan(0);
  }
  for (const file of ['metrics', 'timings']) {
    const lines = readLines(`${observed.result.runDirectory}/${file}.jsonl`);
    for (const name of lines.flatMap((line) => Object.keys(line))) seen.add(name);
  }
  const before = readSafetensors(workspace.file('model/model.safetensors'));
  const after = readSafetensors(join(observed.result.finalModel as string, 'model.safetensors'));
  const name = 'model.layers.1.mlp.down_proj.weight';
  expect(after[name]?.data).toHaveLength(before[name]?.data.length as number);
  expect(after[name]?.data).not.toEqual(before[name]?.data);
  return observed;
}

const stepsOf = ({ metrics }: ObservedRun): Record<string, number>[] =>
  metrics.filter((line) => 'actor/pg_loss' in line) as Record<string, number>[];

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
const mean = (values: readonly number[]): number => sum(values) / values.length;
/** n - 1 */
const variance = (values: readonly number[]): number =>
  sum(values.map((x) => (x - mean(values)) ** 2)) / (values.length - 1);
const tokensOf = (batch: Batch, name: string): number[][] =>
  Array.from({ length: batch.size }, (_, i) => [...(batch.row(name, i) as Float32Array)]);
const scoresOf = (batch: Batch): number[] => batch.get('score') as number[];

/** For each response, the values of all responses to its prompt. */
function groupsOf(batch: Batch, values: readonly number[]): number[][] {
  const uid = batch.get('uid') as string[];
  return uid.map((id) => values.filter((_, j) => uid[j] === id));
}
/** One number per response on each of its tokens. */
const spread = (batch: Batch, values: readonly number[]): number[][] =>
  [...batch.responseLens].map((length, i) => new Array<number>(length).fill(values[i] as number));
function whitened(rows: number[][]): number[][] {
  const all = rows.flat();
  return rows.map((row) => row.map((x) => (x - mean(all)) / Math.sqrt(variance(all) + 1e-8)));
}
const grpo = (batch: Batch, values: readonly number[]): number[] =>
  groupsOf(batch, values).map(
    (group, i) => ((values[i] as number) - mean(group)) / (Math.sqrt(variance(group)) + 1e-6),
  );

function expectAdvantages({ updates }: ObservedRun, formula: (batch: Batch) => number[][]): void {
  for (const { batch } of updates) {
    const expected = formula(batch).flat();
    expect(expected.some((x) => x !== 0)).toBe(true);
    const advantages = batch.get('advantages');
    expect(advantages).toHaveLength(expected.length);
    expected.forEach((value, t) => {
      expect(Math.abs((advantages[t] as number) - value)).toBeLessThan(2e-5 * Math.max(1, Math.abs(value)));
    });
  }
}

/** `formula`: the loss at ratio 1, from the advantages of each response. */
function expectLoss(observed: ObservedRun, formula: (advantages: number[][], batch: Batch) => number): void {
  stepsOf(observed).forEach((line, step) => {
    const batch = observed.updates[step]?.batch as Batch;
    expect(line['actor/pg_loss']).toBeCloseTo(formula(tokensOf(batch, 'advantages'), batch), 5);
  });
}
const tokenMean = (advantages: number[][]): number => -mean(advantages.flat());

it('PPO with GAE and a critic', async () => {
  const [gamma, lam] = [0.9, 0.8];
  const observed = await run(
    'algorithm.adv_estimator=gae',
    `algorithm.gamma=${gamma}`,
    `algorithm.lam=${lam}`,
    'critic.ppo_mini_batch_size=2',
    'actor_rollout_ref.actor.calculate_sum_pi_squared=true',
    'trainer.peak_tflops=0.05',
  );
  expectAdvantages(observed, (batch) => {
    const values = tokensOf(batch, 'values');
    const raw = tokensOf(batch, 'tokenRewards').map((rewards, i) => {
      const v = values[i] as number[];
      const out: number[] = [];
      for (let t = rewards.length - 1, next = 0; t >= 0; t--) {
        next = (rewards[t] as number) + gamma * (v[t + 1] ?? 0) - (v[t] as number) + gamma * lam * next;
        out.unshift(next);
      }
      return out;
    });
    return whitened(raw);
  });
  expectLoss(observed, tokenMean);
  for (const line of stepsOf(observed)) {
    expect(line).toHaveProperty(['critic/vf_explained_var']);
    expect(line['critic/vf_loss']).toBeGreaterThan(0);
    expect(line['variance_proxy/proxy1_signal_strength']).toBe((line['actor/grad_norm'] as number) ** 2);
    expect(line['variance_proxy/proxy2_total_power']).toBeGreaterThan(0);
  }
  for (const line of readLines(`${observed.result.runDirectory}/timings.jsonl`)) {
    for (const name of ['actor', 'critic', 'actor_infer']) {
      expect(line[`perf/mfu/${name}`]).toBeGreaterThan(0);
      expect(line[`perf/mfu/${name}`]).toBeLessThan(1);
    }
  }
  expect(observed.criticBatches).toHaveLength(STEPS);
});

it('GRPO', async () => {
  const observed = await run();
  expectAdvantages(observed, (batch) => spread(batch, grpo(batch, scoresOf(batch))));
  expectLoss(observed, tokenMean);
});

it('EGPO: the GRPO advantage and a bounded bonus for entropy', async () => {
  const observed = await run(
    'algorithm.adv_estimator=egpo',
    'algorithm.egpo_lambda=0.3',
    'algorithm.egpo_alpha=1.5',
  );
  expectAdvantages(observed, (batch) => {
    const entropy = tokensOf(batch, 'entropy').map(mean);
    const values = grpo(batch, scoresOf(batch)).map((a, i) => {
      const bound = Math.abs(a) / 1.5;
      return a + 0.3 * Math.max(-bound, Math.min(bound, entropy[i] as number));
    });
    return spread(batch, values);
  });
});

it('RLOO: the baseline is the mean of the others', async () => {
  const observed = await run('algorithm.adv_estimator=rloo');
  expectAdvantages(observed, (batch) => {
    const scores = scoresOf(batch);
    const others = (group: number[], score: number): number => (sum(group) - score) / (group.length - 1);
    return spread(
      batch,
      groupsOf(batch, scores).map((group, i) => (scores[i] as number) - others(group, scores[i] as number)),
    );
  });
});

it('REINFORCE++: discounted rewards-to-go, whitened', async () => {
  const observed = await run('algorithm.adv_estimator=reinforce_plus_plus', 'algorithm.gamma=0.9');
  expectAdvantages(observed, (batch) => {
    const scores = scoresOf(batch);
    const toGo = [...batch.responseLens].map((length, i) =>
      Array.from({ length }, (_, t) => (scores[i] as number) * 0.9 ** (length - 1 - t)),
    );
    return whitened(toGo);
  });
});

it('ReMax: less the reward of the greedy answer', async () => {
  const observed = await run('algorithm.adv_estimator=remax');
  expectAdvantages(observed, (batch) => {
    const baselines = batch.get('rewardBaselines') as number[];
    // One greedy answer per prompt.
    for (const group of groupsOf(batch, baselines)) expect(new Set(group).size).toBe(1);
    return spread(
      batch,
      scoresOf(batch).map((score, i) => score - (baselines[i] as number)),
    );
  });
});

it('DAPO: dynamic sampling, clip-higher, a penalty on long answers, no KL', async () => {
  const observed = await run(
    'algorithm.filter_groups.enable=true',
    'algorithm.filter_groups.metric=acc',
    'algorithm.filter_groups.max_num_gen_batches=50',
    'actor_rollout_ref.actor.clip_ratio_high=0.28',
    'reward.reward_manager.name=dapo',
    'reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 6, penalty_factor: 0.5, log: true}',
  );
  let batches = 0;
  for (const [step, { batch, options }] of observed.updates.entries()) {
    expect(options.loss).toMatchObject({ clipRatioLow: 0.2, clipRatioHigh: 0.28, useKlLoss: false });
    const accurate = Array.from({ length: SIZE }, (_, i) => {
      const first = batch.response(i)[0] as number;
      return first >= SEVEN && first < SEVEN + 3 ? 1 : 0;
    });
    for (const group of groupsOf(batch, accurate)) expect(new Set(group).size).toBe(2);
    // Half a point at the limit of 8 tokens, falling linearly over the last 6.
    const penalties = [...batch.responseLens].map((length) => -Math.max((length - 2) / 6, 0) * 0.5);
    expect(Math.min(...penalties)).toBeLessThan(0);
    scoresOf(batch).forEach((score, i) => {
      expect(score).toBeCloseTo(ownScore(batch.response(i)) + (penalties[i] as number), 6);
    });
    const line = stepsOf(observed)[step] as Record<string, number>;
    batches += line['train/num_gen_batches'] as number;
    expect(line['train/num_gen_prompts']).toBe((line['train/num_gen_batches'] as number) * BATCH.prompts);
    expect(line['train/kept_prompt_ratio']).toBeGreaterThan(0);
    // Five generation batches are an epoch of the 20 prompts.
    expect(line['training/epoch']).toBe(Math.floor((batches - 1) / 5));
  }
  expect(batches).toBeGreaterThan(STEPS);
  expectAdvantages(observed, (batch) => spread(batch, grpo(batch, scoresOf(batch))));
});

it('Dr.GRPO: no division by the deviation, sums over a constant', async () => {
  const observed = await run(
    'algorithm.norm_adv_by_std_in_grpo=false',
    'actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm',
  );
  expectAdvantages(observed, (batch) => {
    const scores = scoresOf(batch);
    return spread(
      batch,
      groupsOf(batch, scores).map((group, i) => (scores[i] as number) - mean(group)),
    );
  });
  // The constant is data.max_response_length.
  expectLoss(observed, (advantages) => -mean(advantages.map((row) => sum(row) / 8)));
});

it('GSPO: sequence-level ratio, mean over sequences of means over tokens', async () => {
  const observed = await run('actor_rollout_ref.actor.policy_loss.loss_mode=gspo');
  expectLoss(observed, (advantages) => -mean(advantages.filter((row) => row.length > 0).map(mean)));
});

it('CISPO: the log-prob times a ratio without gradient', async () => {
  const observed = await run('actor_rollout_ref.actor.policy_loss.loss_mode=cispo');
  expectLoss(observed, (advantages, batch) => {
    const logProbs = batch.get('oldLogProbs');
    return -mean(advantages.flat().map((a, t) => a * (logProbs[t] as number)));
  });
});

it('gdpo: named rewards, normalised one by one', async () => {
  const observed = await run(
    'algorithm.adv_estimator=gdpo',
    'algorithm.gdpo_reward_keys=[score, brevity]',
    'algorithm.gdpo_reward_weights=[1, 0.25]',
  );
  expectAdvantages(observed, (batch) => {
    const components = batch.get('rewardComponents') as { score: number; brevity: number }[];
    expect(components.map(({ score }) => score)).toEqual(scoresOf(batch));
    const score = grpo(batch, scoresOf(batch));
    const brevity = grpo(
      batch,
      components.map((row) => row.brevity),
    );
    return whitened(
      spread(
        batch,
        score.map((a, i) => a + 0.25 * (brevity[i] as number)),
      ),
    );
  });
  for (const line of stepsOf(observed)) {
    expect(line['gdpo/brevity/max']).toBeLessThanOrEqual(0);
    expect(line['gdpo/score/std']).toBeGreaterThan(0);
  }
});

it('PF-PPO: critic and actor learn from a resample that favours large scores', async () => {
  const observed = await run('algorithm.adv_estimator=gae', 'algorithm.use_pf_ppo=true');
  const ratios: number[] = [];
  for (const [step, { batch }] of observed.updates.entries()) {
    expect(observed.criticBatches[step]).toBe(batch);
    const uid = batch.get('uid') as string[];
    const rows = new Set(uid.map((id, i) => `${id} ${batch.response(i)} ${batch.row('advantages', i)}`));
    const line = stepsOf(observed)[step] as Record<string, number>;
    expect(line['pf_ppo/kept_ratio']).toBe(rows.size / SIZE);
    expect(rows.size).toBeLessThan(SIZE);
    ratios.push(mean(scoresOf(batch).map((s) => s * s)));
    // What was generated, not what was drawn.
    expect(line['critic/advantages/mean']).toBeCloseTo(0, 5);
  }
  const plain = await run('algorithm.adv_estimator=gae');
  const first = mean(scoresOf(plain.updates[0]?.batch as Batch).map((s) => s * s));
  expect(ratios[0]).toBeGreaterThan(first);
});

it('an estimator that a file registers, through the command line', async () => {
  const library = workspace.file('estimators.cjs');
  const troupe = JSON.stringify(resolve(__dirname, '../../dist/index.js'));
  writeFileSync(
    library,
    `const { registerAdvantageEstimator } = require(${troupe});
registerAdvantageEstimator('constant', ({ tokenRewards }) => {
  const advantages = new Float64Array(tokenRewards.length).fill(0.75);
  return { advantages, returns: advantages };
});`,
  );
  const directory = workspace.file('own_estimator');
  const estimator = ['algorithm.adv_estimator=constant', `trainer.default_local_dir=${directory}`];
  const command = ['train', workspace.file('train.yaml'), ...ON_POLICY, ...estimator];
  expect(await runCommand(command)).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/adv_estimator: expected one of gae, .*, got "constant"/),
  });
  const exit = await runCommand([...command, `actor_rollout_ref.model.external_lib=${library}`]);
  expect(exit).toMatchObject({ code: 0, stderr: '' });
  for (const line of readLines(`${directory}/metrics.jsonl`).slice(1))
    expect(line).toMatchObject({ 'critic/advantages/min': 0.75, 'critic/advantages/max': 0.75 });
  const missing = await runCommand([...command, 'actor_rollout_ref.model.external_lib=nowhere.cjs']);
  expect(missing.stderr).toMatch(/external_lib: there is no file .*nowhere\.cjs/);
});

it('an entropy bonus and a KL loss; actor/entropy stays that of the rollout', async () => {
  const observed = await run(
    'actor_rollout_ref.actor.entropy_coeff=0.01',
    'actor_rollout_ref.actor.use_kl_loss=true',
    'actor_rollout_ref.actor.ppo_mini_batch_size=2',
  );
  stepsOf(observed).forEach((line, step) => {
    const entropy = mean([...observed.updates[step]!.batch.get('entropy')]);
    expect(line['actor/entropy']).toBeCloseTo(entropy, 6);
    expect(line['actor/entropy_loss']).not.toBeCloseTo(entropy, 6);
  });
});

it('every metric of these runs is explained in docs/metrics.md', () => {
  const text = readFileSync(join(__dirname, '../../docs/metrics.md'), 'utf8');
  const documented = [...text.matchAll(/`([\w-]+\/[^`]+)`/g)].flatMap(([, name]) => expand(name as string));
  const patterns = documented.map(
    (name) => new RegExp(`^${name.replace(/<[^>]+>/g, '.+').replace('*', '[^/]+')}$`),
  );
  const missing = [...seen].filter((name) => name !== 'step' && !patterns.some((p) => p.test(name)));
  expect(missing).toEqual([]);
  expect(seen.size).toBeGreaterThan(60);
});

/** "a/{b,c}" names a/b and a/c; {data source} without a comma stands for any name, and so does *. */
function expand(name: string): string[] {
  const match = /\{([^}]+)\}/.exec(name);
  if (!match) return [name];
  const [whole, inside] = match as unknown as [string, string];
  const choices = inside.includes(',') ? inside.split(',') : [`<${inside}>`];
  return choices.flatMap((choice) => expand(name.replace(whole, choice)));
}

/** Token id of the character 7 in the example's tokenizer: <pad>, <eos>, 0, 1, ... */
const SEVEN = 2 + 7;

/** `reward` on token ids: every token but the two special ones is a character. */
const ownScore = (tokens: Int32Array): number =>
  tokens.filter((token) => token === SEVEN).length / 8 - tokens.filter((token) => token >= 2).length / 64;
