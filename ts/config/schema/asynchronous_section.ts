import { choice, field, fixed, ignored, int, num, sectionNeeds } from './field';

const warmup = field(
  num(0, 64),
  1,
  'Batches of prompts (or parts of one) that are worked on ahead, beside the one that the next step takes; 0: the numbers of sync.',
);

/** trainer.v1: whether responses come while the policy learns. */
export const asynchronousSection = {
  trainer_mode: field(
    choice('sync', 'colocate_async', 'separate_async'),
    'sync',
    'sync: generate, then learn. colocate_async: a step learns from the first prompts that are done, the others go on after it. separate_async: responses come from servers, or from workers of their own (actor_rollout_ref.rollout.nnodes), while the policy learns.',
  ),
  sync: ignored('there are no keys in it'),
  colocate_async: { num_warmup_batches: warmup },
  separate_async: {
    num_warmup_batches: warmup,
    parameter_sync_step: ignored(
      'the rollout gets new weights after each step, of data.train_batch_size / actor.ppo_mini_batch_size mini-batches, as verl demands',
    ),
    hybrid_rollout: sectionNeeds('lending the trainer’s GPUs to the rollout', { enable_switch: [] }),
  },
  sampler: {
    max_off_policy_threshold: field(
      int(1, 1024),
      8,
      'Steps of which a prompt may see the weights, from the step in which work on it begins to the one that learns from it, both counted.',
    ),
    max_off_policy_strategy: field(
      choice('drop', 'wait'),
      'drop',
      'drop: prompts that are not done in time are given up, and others take their place. wait: steps wait for a prompt that would become too old.',
    ),
    sync_refill_failed_groups: fixed(
      [false],
      'what becomes of agents that fail is said by rollout.agent.on_error',
    ),
    custom_sampler: sectionNeeds('samplers in Python', { path: [], name: [] }),
    sampler_kwargs: ignored('of samplers in Python'),
  },
};
