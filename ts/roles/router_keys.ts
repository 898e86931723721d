// Keys of the routers of a mixture of experts are for models that have some.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readObject } from '../checkpoint/json_object';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { needsCritic } from '../config/derived/roles';
import { routerReplay } from '../config/derived/router_replay';
import { routerZLossCoef } from '../config/derived/router_z_loss';
import { ConfigError } from '../errors';
import { resolveModelConfig } from '../model/hf_config';

type Value = number | string;
/** Values of such keys that ask for nothing. */
const OFF: Readonly<Record<string, Value>> = { number: 0, string: 'disabled' };

/** Such keys, their values, and the model directory. */
function asked(config: ResolvedConfig | ResolvedSftConfig): [key: string, value: Value, dir: string][] {
  if (!('actor_rollout_ref' in config))
    return [['model.router_z_loss_coef', config.model.router_z_loss_coef, config.model.path]];
  const { actor, model } = config.actor_rollout_ref;
  const { critic } = config;
  const replay =
    actor.router_replay.mode === 'disabled' ? 'megatron.router_replay.mode' : 'router_replay.mode';
  return [
    ['actor_rollout_ref.actor.router_aux_loss_coef', actor.router_aux_loss_coef, model.path],
    ['actor_rollout_ref.actor.router_z_loss_coef', routerZLossCoef(actor), model.path],
    [`actor_rollout_ref.actor.${replay}`, routerReplay(config), model.path],
    ['critic.router_z_loss_coef', needsCritic(config) ? routerZLossCoef(critic) : 0, critic.model.path],
  ];
}

/**
 * Reads config.json of the models whose routers have a loss, or whose choices are replayed.
 * @throws ConfigError where a model has no experts
 */
export function checkRouterKeys(config: ResolvedConfig | ResolvedSftConfig): void {
  for (const [key, value, dir] of asked(config)) {
    const file = path.join(dir, 'config.json');
    // What is wrong with the directory is said where it is loaded.
    const off = OFF[typeof value];
    if (value === off || !existsSync(file)) continue;
    const { moe } = resolveModelConfig(readObject(file, 'model'), 'lm', file).native;
    if (moe === null)
      throw new ConfigError(`${key}: the model in ${dir} has no experts: expected ${off}, got ${value}`, key);
  }
}
