import { registerAdvantageEstimator } from '../../../ts/algorithms/advantages';
import { registerPolicyLoss } from '../../../ts/algorithms/policy_losses/registry';
import { needsCritic, needsReference } from '../../../ts/config/derived/roles';
import { ulyssesOf } from '../../../ts/config/derived/ulysses';
import { advantageOptions, policyLossOptions } from '../../../ts/roles/settings';
import { failure, load } from './write_config';

describe('contradictions', () => {
  it.each([
    [
      'actor_rollout_ref.actor.ppo_mini_batch_size=128',
      /128 prompts per mini-batch are more than data\.train_batch_size 64/,
    ],
    [
      'actor_rollout_ref.actor.ppo_mini_batch_size=24',
      /24 prompts per mini-batch do not divide .* choose one of 1, 2, 4, 8, 16, 32, 64/,
    ],
    ['critic.ppo_mini_batch_size=24', /^critic\.ppo_mini_batch_size/],
    [
      'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000',
      /cannot hold one sequence .* 512 \+ .* 512 = 1024 tokens/,
    ],
    ['actor_rollout_ref.rollout.temperature=0', /training needs sampled responses/],
    ['actor_rollout_ref.rollout.do_sample=false', /training needs sampled responses/],
    ['trainer.resume_mode=resume_path', /trainer\.resume_from_path: expected a checkpoint directory/],
    ['trainer.resume_from_path=x/global_step_1', /set it to resume_path/],
    [
      'actor_rollout_ref.actor.fsdp_config={model_dtype: bf16, dtype: fp32}',
      /^actor_rollout_ref\.actor\.fsdp_config\.model_dtype: expected float32 beside .*fsdp_config\.dtype float32, got bfloat16/,
    ],
    [
      'actor_rollout_ref.model={path: m, lora_rank: 8, lora: {rank: 4}}',
      /model\.lora\.rank: actor_rollout_ref\.model\.lora_rank is given as well, with another value/,
    ],
    [
      'actor_rollout_ref.model.lora={rank: 4, type: dora}',
      /model\.lora\.type: expected "lora" or "canonical_lora", got "dora": .* give lora/,
    ],
    ['actor_rollout_ref.model.lora={rank: 4, dropout: 0.1}', /model\.lora\.dropout: expected 0, got 0\.1/],
    [
      'actor_rollout_ref.model.lora={rank: 4, target_modules: ["*.linear_qkv"]}',
      /model\.lora\.target_modules: expected a list of linear_qkv, .* give lora_rank and the keys beside it/,
    ],
    ['trainer.val_only=true', /expected data\.val_files/],
    [
      'reward={custom_reward_function: {path: r.py}, reward_model: {enable: true, model_path: m}}',
      /^reward\.custom_reward_function\.path: needs rewards that .*, which are not there: .* r\.py .*sample\.rewardModelScore/,
    ],
    [
      'rollout={n: 8}',
      /^rollout: expected null, got \{"n":8\}: the keys of a rollout are in actor_rollout_ref\.rollout; /,
    ],
    ['data.custom_cls.name=A', /^data\.custom_cls\.path: expected the Python file of the class A/],
    ['data.custom_cls.path=a.py', /^data\.custom_cls\.name: expected the name of the class in a\.py/],
    [
      'data.custom_cls={path: pkg://a, name: A}',
      /^data\.custom_cls\.path: expected a Python file \(\.py\), got pkg:/,
    ],
    [
      'data.custom_cls={path: a.py, name: A, config: {prompt_key: p}}',
      /^data\.custom_cls\.config\.prompt_key: expected data\.prompt_key to be given instead/,
    ],
    [
      'trainer.launcher.type=ssh',
      /trainer\.launcher\.hosts: expected at least 1 because trainer\.nnodes is 1, got 0/,
    ],
    [
      'actor_rollout_ref.actor.fsdp_config.fsdp_size=0',
      /fsdp_size: expected -1 or a divisor of the number of workers \(1\), got 0/,
    ],
    [
      'actor_rollout_ref.actor.ulysses_sequence_parallel_size=2',
      /actor\.ulysses_sequence_parallel_size: expected a divisor of the number of workers \(1, .*\), got 2/,
    ],
    [
      'actor_rollout_ref.rollout.tensor_model_parallel_size=2',
      /rollout\.tensor_model_parallel_size: expected a divisor of the number of workers \(1, .*\), got 2/,
    ],
    [
      'actor_rollout_ref.ref.ulysses_sequence_parallel_size=0',
      /ref\.ulysses_sequence_parallel_size: expected an integer from 1 to 65536, got 0/,
    ],
    [
      'trainer.logger=[console,clearml]',
      /trainer\.logger: expected some of console, file, .*mlflow.*, got "clearml": needs the logger clearml, which is not there/,
    ],
    ['trainer.logger=[tensorbord]', /trainer\.logger: .*got "tensorbord": did you mean tensorboard\?/],
    ['algorithm.adv_estimator=grp', /got "grp"; did you mean grpo\?/],
    ['algorithm.adv_estimator=optimal_token_baseline', /calculate_sum_pi_squared: .* set it to true/],
    ['actor_rollout_ref.actor.policy_loss.loss_mode=dro', /dro_beta: expected a number > 0/],
    ['critic.enable=false', /gae needs a critic/],
    [
      'algorithm.estimator_kwargs={a: 1}',
      /estimator_kwargs: only functions of registerAdvantageEstimator read it, and algorithm.adv_estimator is gae/,
    ],
    [
      'actor_rollout_ref.actor.policy_loss.kwargs={a: 1}',
      /policy_loss\.kwargs: only functions of registerPolicyLoss read it, and .*loss_mode is vanilla/,
    ],
  ])('%s', (override, message) => {
    expect(failure([override]).message).toMatch(message);
  });

  test('what an estimator of one’s own says that it needs, the run has or refuses', () => {
    const column = () => ({ advantages: [], returns: [] });
    registerAdvantageEstimator('needy', column, { needs: ['values', 'refLogProbs', 'sumPiSquared'] });
    const squares = 'actor_rollout_ref.actor.calculate_sum_pi_squared=true';
    const mine = ['algorithm.adv_estimator=needy', 'algorithm.estimator_kwargs={a: 1}'];
    const config = load([...mine, squares]);
    expect([needsCritic(config), needsReference(config)]).toEqual([true, true]);
    expect(advantageOptions(config).kwargs).toEqual({ a: 1 });
    expect(failure(mine).message).toMatch(/calculate_sum_pi_squared: algorithm.adv_estimator needy needs it/);
    expect(failure([...mine, squares, 'critic.enable=false']).message).toMatch(/needy needs a critic/);
    const bypass = 'algorithm.rollout_correction.bypass_mode=true';
    expect(failure([...mine, squares, bypass]).message).toMatch(/needy needs the pass over the model/);
    registerPolicyLoss('needy loss', () => ({ loss: [], gradLogProbs: [] }));
    const loss = 'actor_rollout_ref.actor.policy_loss={loss_mode: needy loss, kwargs: {b: 2}}';
    expect(policyLossOptions(load([loss]))).toMatchObject({ mode: 'needy loss', kwargs: { b: 2 } });
  });

  test('ranks that share micro-batches have as many times their capacity', () => {
    const actor = 'actor_rollout_ref.actor';
    const four = ['trainer.n_gpus_per_node=4', `${actor}.ppo_max_token_len_per_gpu=600`];
    const shared = [...four, `${actor}.ulysses_sequence_parallel_size=2`];
    expect(failure(four).message).toMatch(/600 tokens per micro-batch cannot hold one sequence/);
    const { actor_rollout_ref: roles, critic } = load(shared);
    expect(ulyssesOf(roles.actor, roles.actor.fsdp_config)).toBe(2);
    expect(roles.ref.ulysses_sequence_parallel_size).toBe(2);
    expect(ulyssesOf(critic, critic.model.fsdp_config)).toBe(1);
    const few = [...shared, `${actor}.ppo_max_token_len_per_gpu=500`];
    expect(failure(few).message).toMatch(/500 x 2 ranks = 1000 tokens per micro-batch cannot hold/);
    // verl's engine reads the key of fsdp_config, which that of the role takes the place of.
    const engine = load([
      ...four,
      `${actor}.fsdp_config.ulysses_sequence_parallel_size=4`,
      `${actor}.ppo_max_token_len_per_gpu=1024`,
    ]);
    expect(ulyssesOf(engine.actor_rollout_ref.actor, engine.actor_rollout_ref.actor.fsdp_config)).toBe(4);
    expect(failure([...shared, `${actor}.fsdp_config.ulysses_sequence_parallel_size=4`]).message).toMatch(
      /fsdp_config\.ulysses_sequence_parallel_size: expected 2, as .*actor\.ulysses_sequence_parallel_size says, got 4/,
    );
  });

  it('of a critic that does not run are none', () => {
    expect(() => load(['algorithm.adv_estimator=grpo', 'critic.ppo_mini_batch_size=24'])).not.toThrow();
  });
});
