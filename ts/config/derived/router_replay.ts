// Which experts updates of a mixture send tokens to: those that they find the likeliest, or recorded ones.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { agentOf } from './agents';

export type RouterReplay = 'disabled' | 'R2' | 'R3';

const ACTOR = 'actor_rollout_ref.actor';
const RECORDING = 'actor_rollout_ref.rollout.enable_rollout_routing_replay';

/** R2: those of the forward that computes the old log-probs; R3: those of the rollout. Either key of verl says it. */
export function routerReplay({ actor_rollout_ref: { actor } }: ResolvedConfig): RouterReplay {
  const { mode } = actor.router_replay;
  return mode === 'disabled' ? actor.megatron.router_replay.mode : mode;
}

/** @throws ConfigError where what is to be replayed is not recorded, or nothing would read it */
export function checkRouterReplay(config: ResolvedConfig): void {
  const { actor, rollout } = config.actor_rollout_ref;
  const mode = routerReplay(config);
  const refuse = (key: string, message: string): never => {
    throw new ConfigError(`${key}: ${message}`, key);
  };
  const { mode: ofEngine } = actor.megatron.router_replay;
  if (ofEngine !== 'disabled' && ofEngine !== mode)
    refuse(
      `${ACTOR}.megatron.router_replay.mode`,
      `is ${ofEngine}, but ${ACTOR}.router_replay.mode is ${mode}: they say the same thing`,
    );
  if (config.critic.megatron.router_replay.mode !== 'disabled')
    refuse('critic.megatron.router_replay.mode', 'expected disabled: the choices recorded are the actor’s');
  if (rollout.enable_rollout_routing_replay !== (mode === 'R3'))
    refuse(
      RECORDING,
      mode === 'R3'
        ? 'expected true because router_replay.mode is R3: the rollout records what updates replay'
        : `is true, but router_replay.mode is ${mode}: only R3 reads what the rollout records`,
    );
  if (mode === 'R2' && config.algorithm.rollout_correction.bypass_mode)
    refuse(
      `${ACTOR}.router_replay.mode`,
      'R2 records while old log-probs are computed, which algorithm.rollout_correction.bypass_mode leaves out: R3 records in the rollout',
    );
  if (mode !== 'R3') return;
  if (rollout.mode === 'server' || rollout.mode === 'managed')
    refuse(RECORDING, `only our own engine says which experts it chose, and rollout.mode is ${rollout.mode}`);
  if (agentOf(config) !== null)
    refuse(RECORDING, 'the turns of agents are not recorded: take router_replay.mode R2 with them');
}
