import { batchArithmetic, configNotes, loadConfig } from '../../../ts/config/config';
import { asynchrony } from '../../../ts/config/derived/asynchrony';
import { configError, writeConfig } from './write_config';

const V1 = 'trainer.v1';
const COLOCATED = `${V1}.trainer_mode=colocate_async`;
const SEPARATE = `${V1}.trainer_mode=separate_async`;
const SERVERS = ['actor_rollout_ref.rollout.name=vllm', 'actor_rollout_ref.rollout.mode=managed'];
const load = (...overrides: string[]) => loadConfig(writeConfig(), overrides);

test('verl’s defaults: one batch ahead, eight versions, what is older is dropped', () => {
  expect(asynchrony(load())).toBeNull();
  const { train_batch_size: batch } = load().data;
  const usual = { ahead: batch, maxSpan: 8, strategy: 'drop' };
  expect(asynchrony(load(COLOCATED))).toEqual({ ...usual, colocated: true });
  expect(asynchrony(load(SEPARATE, ...SERVERS))).toEqual({ ...usual, colocated: false });
});

test('a part of a batch may be ahead, and each mode has its own number', () => {
  const numbers = [
    `${V1}.colocate_async.num_warmup_batches=0.1`,
    `${V1}.separate_async.num_warmup_batches=2`,
  ];
  const { train_batch_size: batch } = load().data;
  expect(asynchrony(load(COLOCATED, ...numbers))?.ahead).toBe(Math.ceil(batch / 10));
  expect(asynchrony(load(SEPARATE, ...SERVERS, ...numbers))?.ahead).toBe(2 * batch);
});

test('troupe validate says what is ahead', () => {
  const ahead = (...overrides: string[]) =>
    batchArithmetic(load(...overrides, 'data.train_batch_size=16', 'actor_rollout_ref.rollout.n=4')).filter(
      (line) => line.startsWith('ahead'),
    );
  expect(ahead()).toEqual([]);
  expect(ahead(COLOCATED)).toEqual([
    'ahead: 16 prompts = 64 sequences worked on beside the 16 of a step; a step learns from prompts begun at most 7 steps before it, leaves older ones out',
  ]);
  const sampler = `${V1}.sampler={max_off_policy_threshold: 2, max_off_policy_strategy: wait}`;
  expect(ahead(COLOCATED, sampler)).toEqual([
    expect.stringMatching(/begun at most 1 step before it, and waits for those that would be older$/),
  ]);
});

test('older weights bring rollout correction with them, unless it says what it is', () => {
  const correction = (...overrides: string[]) => load(...overrides).algorithm.rollout_correction;
  expect(correction().rollout_is).toBeNull();
  expect(correction(COLOCATED)).toMatchObject({ preset: 'decoupled_token_is', rollout_is: 'token' });
  expect(correction(COLOCATED, 'algorithm.rollout_correction.bypass_mode=true').rollout_is).toBeNull();
  const notes = (...overrides: string[]): string[] => configNotes(load(...overrides)).map(({ path }) => path);
  expect(notes(COLOCATED)).toEqual([`${V1}.trainer_mode`]);
  expect(notes(COLOCATED, 'algorithm.rollout_correction.preset=disabled')).toEqual([]);
});

test.each<[string, string[], RegExp]>([
  [
    'servers are apart',
    [COLOCATED, ...SERVERS],
    /trainer_mode: colocate_async .* rollout\.mode is managed: use separate_async/,
  ],
  ['the workers are not', [SEPARATE], /trainer_mode: separate_async needs responses from elsewhere/],
  [
    'what is ahead would always be too old',
    [COLOCATED, `${V1}.colocate_async.num_warmup_batches=1.5`, `${V1}.sampler.max_off_policy_threshold=2`],
    /max_off_policy_threshold: expected at least 3, since num_warmup_batches 1\.5 begins work on prompts 2 steps ahead, got 2/,
  ],
  [
    'no such mode',
    [`${V1}.trainer_mode=async`],
    /trainer_mode: expected one of sync, colocate_async, separate_async/,
  ],
  [
    'fewer than none',
    [`${V1}.colocate_async.num_warmup_batches=-1`],
    /num_warmup_batches: expected a number from 0 to 64/,
  ],
  ['a sampler in Python', [`${V1}.sampler.custom_sampler.path=x.py`], /custom_sampler.*samplers in Python/],
  [
    'GPUs that are lent',
    [`${V1}.separate_async.hybrid_rollout.enable_switch=true`],
    /hybrid_rollout.*lending/,
  ],
])('%s', (_, overrides, message) => {
  expect(configError(() => load(...overrides)).message).toMatch(message);
});
