// The z-loss of routers, which has a name of its own and Megatron's.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';

type Learner = Pick<ResolvedConfig['critic'], 'strategy' | 'megatron' | 'router_z_loss_coef'>;

/** Its weight; 0: there is none. */
export const routerZLossCoef = (role: Learner): number => role.router_z_loss_coef ?? 0;

/** @throws ConfigError where the two names say different weights, or Megatron's is said beside another strategy */
export function checkRouterZLoss(section: string, role: Learner): void {
  const { moe_z_loss_coeff: ofEngine } = role.megatron.override_transformer_config;
  if (ofEngine === null) return;
  const [own, key] = [
    `${section}.router_z_loss_coef`,
    `${section}.megatron.override_transformer_config.moe_z_loss_coeff`,
  ];
  if (role.router_z_loss_coef !== ofEngine)
    throw new ConfigError(
      `${key}: is ${ofEngine}, but ${own} is ${role.router_z_loss_coef}: they say the same thing`,
      key,
    );
  if (ofEngine !== 0 && role.strategy !== 'megatron')
    throw new ConfigError(
      `${key}: expected ${section}.strategy megatron beside ${ofEngine}, got ${role.strategy}: give ${own}, which every strategy reads`,
      key,
    );
}
