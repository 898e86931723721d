// The roles of a run that have a model, and how many workers hold it.
import type { ResolvedConfig } from '../config/config';
import { policyRanks, rewardRanks } from '../config/derived/pools';
import { needsCritic, needsReference, needsRewardModel } from '../config/derived/roles';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
} from './role_settings';
import { teacherSettings } from './teacher_settings';

/** The roles that a run has beside its actor. */
export interface RunRoles {
  reference: boolean;
  critic: boolean;
  rewardModel: boolean;
}

/** As a configuration says. */
export const runRoles = (config: ResolvedConfig): RunRoles => ({
  reference: needsReference(config),
  critic: needsCritic(config),
  rewardModel: needsRewardModel(config),
});

/** The actor first. */
export function modelRoles(
  config: ResolvedConfig,
  needs: RunRoles,
): { role: RoleSettings; workers: number }[] {
  const reference = needs.reference ? referenceSettings(config) : null;
  const roles = [
    actorSettings(config),
    ...(reference === null ? [] : [reference]),
    ...teacherSettings(config),
    ...(needs.critic ? [criticSettings(config)] : []),
  ].map((role) => ({ role, workers: policyRanks(config) }));
  return needs.rewardModel
    ? [...roles, { role: rewardModelSettings(config), workers: rewardRanks(config) }]
    : roles;
}
