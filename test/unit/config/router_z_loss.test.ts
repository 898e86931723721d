import { configNotes, loadConfig, loadSftConfig } from '../../../ts/config/config';
import { routerZLossCoef } from '../../../ts/config/derived/router_z_loss';
import { policyLossOptions } from '../../../ts/roles/settings';
import { writeConfig } from './write_config';

const ACTOR = 'actor_rollout_ref.actor';
const ofEngine = (section: string) => `${section}.megatron.override_transformer_config.moe_z_loss_coeff`;
const configured = (...overrides: string[]) => loadConfig(writeConfig(), overrides);
const MEGATRON = [`${ACTOR}.strategy=megatron`, 'critic.strategy=megatron'];

test('none unless it is asked for, under its own name or Megatron’s', () => {
  const coefs = (...overrides: string[]) => {
    const config = configured(...MEGATRON, ...overrides);
    const { actor } = config.actor_rollout_ref;
    expect(policyLossOptions(config).routerZLossCoef).toBe(routerZLossCoef(actor));
    return [routerZLossCoef(actor), routerZLossCoef(config.critic)];
  };
  expect(coefs()).toEqual([0, 0]);
  expect(coefs(`${ACTOR}.router_z_loss_coef=0.002`, `${ofEngine('critic')}=0.003`)).toEqual([0.002, 0.003]);
  expect(coefs(`${ofEngine(ACTOR)}=0.002`, 'critic.router_z_loss_coef=0.003')).toEqual([0.002, 0.003]);
  expect(coefs(`${ofEngine(ACTOR)}=0.002`, `${ACTOR}.router_z_loss_coef=0.002`)).toEqual([0.002, 0]);
  expect(coefs(`${ofEngine(ACTOR)}=null`, `${ofEngine('critic')}=0`)).toEqual([0, 0]);
  const plain = configured(`${ACTOR}.router_z_loss_coef=0.002`, `${ofEngine(ACTOR)}=0.002`, ...MEGATRON);
  expect(plain.actor_rollout_ref.actor.router_z_loss_coef).toBe(0.002);
});

test.each<[string[], RegExp]>([
  [[`${ACTOR}.router_z_loss_coef=-1`], /router_z_loss_coef: expected a number >= 0/],
  [[...MEGATRON, `${ofEngine(ACTOR)}=-1`], /moe_z_loss_coeff: expected a number >= 0/],
  [
    [...MEGATRON, `${ofEngine(ACTOR)}=0.001`, `${ACTOR}.router_z_loss_coef=0.002`],
    /actor\.megatron\.override_transformer_config\.moe_z_loss_coeff: is 0\.001, but actor_rollout_ref\.actor\.router_z_loss_coef is 0\.002: they say the same thing/,
  ],
  [
    [...MEGATRON, `${ofEngine('critic')}=0.001`, 'critic.router_z_loss_coef=0'],
    /critic\.megatron\.override_transformer_config\.moe_z_loss_coeff: is 0\.001, but critic\.router_z_loss_coef is 0:/,
  ],
  [
    [`${ofEngine(ACTOR)}=0.001`],
    /expected actor_rollout_ref\.actor\.strategy megatron beside 0\.001, got fsdp: give/,
  ],
])('refused: %j', (overrides, reason) => {
  expect(() => configured(...overrides)).toThrow(reason);
});

test('of roles that do not learn it is without effect, and said to be', () => {
  const sections = ['actor_rollout_ref.ref', 'reward.reward_model'];
  const config = configured(...MEGATRON, ...sections.map((section) => `${ofEngine(section)}=0.001`));
  const notes = configNotes(config).filter(({ path }) => path.endsWith('moe_z_loss_coeff'));
  expect(notes).toEqual(
    sections.map((section) => ({ path: ofEngine(section), reason: 'the role does not learn' })),
  );
});

test('a pipeline of the actor leaves its reference alone', () => {
  const stages = `${ACTOR}.megatron.pipeline_model_parallel_size=2`;
  const reference = 'actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1';
  const ends = `${ACTOR}.megatron.override_transformer_config.account_for_loss_in_pipeline_split=true`;
  const keys = ['trainer.n_gpus_per_node=2', stages, reference, ends, `${ACTOR}.use_kl_loss=true`];
  expect(() => configured(...MEGATRON, ...keys, `${ofEngine(ACTOR)}=0.001`)).not.toThrow();
});

test('of a supervised run', () => {
  const sft = (...overrides: string[]) =>
    loadSftConfig(writeConfig('data: {train_files: a.jsonl}\nmodel: {path: model}\n'), overrides).model;
  expect(sft().router_z_loss_coef).toBe(0);
  expect(sft('model.router_z_loss_coef=0.001').router_z_loss_coef).toBe(0.001);
  expect(() => sft('model.router_z_loss_coef=-1')).toThrow('router_z_loss_coef');
});
