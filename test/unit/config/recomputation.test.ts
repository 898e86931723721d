import { configNotes, loadSftConfig } from '../../../ts/config/config';
import { trainedOptions } from '../../../ts/roles/role_options';
import {
  actorSettings,
  criticSettings,
  referenceSettings,
  rolloutSettings,
  sftSettings,
} from '../../../ts/roles/role_settings';
import { configError, failure, load, writeConfig } from './write_config';

const POLICY = 'actor_rollout_ref.model';
const GAE = 'algorithm.adv_estimator=gae';
const offload = (model: string): string => `${model}.enable_activation_offload=true`;
const keep = (model: string): string => `${model}.enable_gradient_checkpointing=false`;
const recompute = (section: string, granularity: string): string[] => [
  `${section}.strategy=megatron`,
  `${section}.megatron.override_transformer_config.recompute_granularity=${granularity}`,
];
const ACTOR = 'actor_rollout_ref.actor';

test('the roles that learn, and no others, have activations that wait on the host', () => {
  const config = load([offload(POLICY), offload('critic.model'), GAE, `${ACTOR}.use_kl_loss=true`]);
  const waits = { gradientCheckpointing: true, activationOffload: true };
  expect(trainedOptions(actorSettings(config), 1)).toMatchObject(waits);
  expect(trainedOptions(criticSettings(config), 1)).toMatchObject(waits);
  expect(rolloutSettings(config).activationOffload).toBe(false);
  expect(referenceSettings(config)?.activationOffload).toBe(false);
  expect(trainedOptions(actorSettings(load()), 1)).not.toHaveProperty('activationOffload');
});

test('what waits is what recomputation keeps: without it there is nothing', () => {
  const refused = failure([offload(POLICY), keep(POLICY)]);
  expect(refused.message).toMatch(
    /actor_rollout_ref\.model\.enable_activation_offload: what waits .* expected actor_rollout_ref\.model\.enable_gradient_checkpointing=true beside it/,
  );
  expect(failure([offload('critic.model'), keep('critic.model'), GAE]).message).toMatch(
    /expected critic\.model\.enable_gradient_checkpointing=true/,
  );
  // Without a critic nobody reads its keys.
  load([offload('critic.model'), keep('critic.model'), 'algorithm.adv_estimator=grpo']);
  expect(failure([offload(POLICY), ...recompute(ACTOR, 'selective')]).message).toMatch(
    /expected actor_rollout_ref\.actor\.megatron\.override_transformer_config\.recompute_granularity=full/,
  );
  load([offload(POLICY), keep(POLICY), ...recompute(ACTOR, 'full')]);
});

test('of a supervised run', () => {
  const file = writeConfig(
    '{ data: { train_files: none.jsonl, train_batch_size: 8, max_length: 16 }, model: { path: model } }',
  );
  const config = loadSftConfig(file, [offload('model'), 'trainer.device=cuda']);
  expect(trainedOptions(sftSettings(config), 1).activationOffload).toBe(true);
  expect(configError(() => loadSftConfig(file, [offload('model'), keep('model')])).message).toMatch(
    /: what waits .*: expected model\.enable_gradient_checkpointing=true beside it/,
  );
  const noted = (device: string): string[] =>
    configNotes(loadSftConfig(file, [offload('model'), `trainer.device=${device}`])).map(({ path }) => path);
  expect(noted('cpu')).toContain('model.enable_activation_offload');
  expect(noted('cuda')).not.toContain('model.enable_activation_offload');
});
