import { AGGREGATIONS } from '../../algorithms/names';
import { bool, choice, count, derived, field, ignored, moved, needs, num, orNull, str } from './field';
import { megatronSection } from './megatron_section';
import { optim } from './optim_section';
import { DYNAMIC } from './reasons';
import { ENGINE_STRATEGY, fsdpConfig, model, routerZLoss, updates } from './role_parts';

export const criticSection = {
  kl_ctrl: ignored('algorithm.kl_ctrl holds'),
  ...updates,
  enable: field(orNull(bool), null, 'null: when adv_estimator is gae.'),
  strategy: ENGINE_STRATEGY,
  model: {
    path: derived(
      str,
      'actor_rollout_ref.model.path',
      'Hugging Face directory: token classification, or a causal LM that gets a fresh head.',
    ),
    ...model,
    mtp: ignored('a critic predicts no tokens'),
    tokenizer_path: ignored(
      'the critic reads the token ids of the policy, which its model’s tokenizer.json, if there is one, has to list alike',
    ),
    custom_chat_template: ignored('the critic reads the token ids of the policy'),
    fsdp_config: fsdpConfig,
  },
  fsdp: moved('critic.model.fsdp_config'),
  veomni: needs('another engine than FSDP'),
  torchtitan: needs('another engine than FSDP'),
  ppo_mini_batch_size: derived(
    count('sequences'),
    'actor_rollout_ref.actor.ppo_mini_batch_size',
    'Prompts per mini-batch.',
  ),
  ppo_epochs: derived(count('passes'), 'actor_rollout_ref.actor.ppo_epochs', 'Passes over each batch.'),
  loss_agg_mode: derived(
    choice(...AGGREGATIONS),
    'actor_rollout_ref.actor.loss_agg_mode',
    'Aggregation of the value loss.',
  ),
  ppo_max_token_len_per_gpu: field(count('batchTokens'), 32768, 'Packing capacity: tokens per micro-batch.'),
  forward_max_token_len_per_gpu: ignored('ppo_max_token_len_per_gpu holds'),
  forward_micro_batch_size: ignored(DYNAMIC),
  forward_micro_batch_size_per_gpu: ignored(DYNAMIC),
  cliprange_value: field(num(0), 0.5, 'Clip range of the value loss.'),
  router_z_loss_coef: routerZLoss('critic'),
  optim: optim(1e-5, 'critic'),
  rollout_n: ignored('actor_rollout_ref.rollout.n holds'),
  engine: ignored('there is one engine'),
  load_weight: ignored('weights are always loaded'),
  nccl_timeout: ignored('actor_rollout_ref.nccl_timeout holds'),
  megatron: megatronSection,
};
