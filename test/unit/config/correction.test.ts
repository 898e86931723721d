import { registerPolicyLoss } from '../../../ts/algorithms/policy_losses/registry';
import { resolveCorrection } from '../../../ts/algorithms/rollout_correction/options';
import { PRESET_NAMES } from '../../../ts/algorithms/rollout_correction/presets';
import { correctionOptions } from '../../../ts/config/derived/correction';
import { policyLossOptions } from '../../../ts/roles/settings';
import { configError, load, MINIMAL } from './write_config';

const section = 'algorithm.rollout_correction';
const lossMode = 'actor_rollout_ref.actor.policy_loss.loss_mode';

describe('algorithm.rollout_correction', () => {
  test("has verl's defaults", () => {
    expect(load().algorithm.rollout_correction).toEqual({
      preset: null,
      rollout_is: null,
      rollout_is_threshold: 2,
      rollout_is_batch_normalize: false,
      rollout_rs: null,
      rollout_rs_threshold: null,
      bypass_mode: false,
      loss_type: 'ppo_clip',
    });
  });

  test('presets fill in keys; keys that are given as well win', () => {
    const text = `${MINIMAL}algorithm:
  rollout_correction: { preset: decoupled_geo_rs_token_tis, rollout_is_threshold: "0.5_5.0" }
`;
    expect(load([`${section}.rollout_rs=null`], text).algorithm.rollout_correction).toMatchObject({
      rollout_is: 'token',
      rollout_is_threshold: '0.5_5.0',
      rollout_rs: null,
      rollout_rs_threshold: '0.999_1.001',
    });
    for (const name of PRESET_NAMES) expect(() => load([`${section}.preset=${name}`])).not.toThrow();
  });

  test('a threshold of null asks for no weights', () => {
    const config = load([`${section}.rollout_is=token`, `${section}.rollout_is_threshold=null`]);
    expect(resolveCorrection(correctionOptions(config)).importance).toBeNull();
  });

  test.each<[string[], string, RegExp]>([
    [['preset=tis'], 'preset', /expected one of disabled, .*, got "tis"/],
    [['rollout_is=row'], 'rollout_is', /expected one of token, sequence, or null/],
    [
      ['rollout_is_threshold=true'],
      'rollout_is_threshold',
      /rollout_is_threshold: expected a number or a string, or null, got true/,
    ],
    [['rollout_is_threshold=0'], 'rollout_is_threshold', /rollout_is_threshold: expected a number > 0/],
    [['rollout_rs=token_k2'], 'rollout_rs_threshold', /rollout_rs_threshold: rollout_rs token_k2 needs one/],
    [['rollout_rs=geometric', 'rollout_rs_threshold=1'], 'rollout_rs', /unknown criterion 'geometric'/],
    [['loss_type=ppo'], 'loss_type', /expected one of ppo_clip, reinforce/],
  ])('%j is refused', (overrides, path, message) => {
    const error = configError(() => load(overrides.map((override) => `${section}.${override}`)));
    expect(error.message).toMatch(message);
    expect(error.path).toBe(`${section}.${path}`);
    expect(error.message.startsWith(`${section}.${path}: `)).toBe(true);
  });
});

describe('bypass mode', () => {
  const on = `${section}.bypass_mode=true`;

  test('makes the loss of the update', () => {
    const config = load([on, `${section}.loss_type=reinforce`, `${section}.rollout_is=sequence`]);
    expect(policyLossOptions(config)).toMatchObject({
      mode: 'bypass_mode',
      rolloutCorrection: { rolloutIs: 'sequence', rolloutIsThreshold: 2, lossType: 'reinforce' },
    });
    expect(correctionOptions(config).bypassMode).toBe(true);
    expect(() => load([on, `${lossMode}=bypass_mode`])).not.toThrow();
    expect(policyLossOptions(load())).not.toHaveProperty('rolloutCorrection');
  });

  test.each<[string[], RegExp]>([
    [[`${lossMode}=bypass_mode`], /loss_mode: bypass_mode needs .*\.bypass_mode=true/],
    [[on, `${lossMode}=gspo`], /has its own loss \(.*loss_type\): leave loss_mode out, got "gspo"/],
    [[on, 'algorithm.adv_estimator=egpo'], /bypass_mode: algorithm.adv_estimator egpo needs the pass/],
  ])('%j is refused', (overrides, message) => {
    expect(configError(() => load(overrides)).message).toMatch(message);
  });
});

test('loss_mode takes registered names, and says how when it knows none', () => {
  expect(configError(() => load([`${lossMode}=my_loss`])).message).toMatch(
    /loss_mode: expected one of vanilla, .*, got "my_loss" \(registerPolicyLoss\(name, fn\) adds your own/,
  );
  expect(configError(() => load([`${lossMode}=vanila`])).message).toMatch(/did you mean vanilla\?/);
  registerPolicyLoss('my_loss', ({ logProbs }) => ({ loss: logProbs, gradLogProbs: logProbs }));
  expect(policyLossOptions(load([`${lossMode}=my_loss`])).mode).toBe('my_loss');
});
