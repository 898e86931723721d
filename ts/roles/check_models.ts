// Whether the models of a run can be used as the configuration says: before any worker is started.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { policyRanks, rewardRanks } from '../config/derived/pools';
import { decodingRanks } from '../config/derived/rollout_place';
import { checkLayout } from '../engine/check_layout';
import { resolveParallel } from '../engine/parallel_options';
import { checkDecoding } from './check_decoding';
import { checkImages } from './check_images';
import { checkTeacherSizes } from './check_teachers';
import { parallelOptions } from './fsdp_options';
import { roleAdapters } from './role_adapters';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
  sftSettings,
} from './role_settings';
import { teacherSettings } from './teacher_settings';

/** The roles that a run has beside its actor. */
export interface RunRoles {
  reference: boolean;
  critic: boolean;
  rewardModel: boolean;
}

/**
 * What the models cannot do, heads, layers and experts that do not divide over the workers, and adapters of modules that are not there. Reads
 * config.json of each model, and no weight.
 * @param absent directories that are passed over
 * @throws ConfigError, TroupeError naming the key, with the numbers
 */
export function checkModels(config: ResolvedConfig, roles: RunRoles, absent: readonly string[] = []): void {
  const isThere = ({ model }: RoleSettings): boolean => !absent.includes(model);
  const actor = actorSettings(config);
  if ([actor, ...teacherSettings(config)].every(isThere)) checkImages(config, roles);
  for (const { role, workers } of modelRoles(config, roles)) if (isThere(role)) checkRole(role, workers);
  checkTeacherSizes(config, absent);
  if (decodingRanks(config) > 1 && isThere(actor))
    checkDecoding(config, readModelShape(actor.model, actor.head, actor.keys.model, actor).config);
}

/** As {@link checkModels}, for `troupe sft`. */
export function checkSftModel(config: ResolvedSftConfig): void {
  checkRole(sftSettings(config), policyRanks(config));
}

/** The directories of the models of a run that are not there. */
export function absentModels(config: ResolvedConfig | ResolvedSftConfig, roles: RunRoles): string[] {
  const dirs =
    'actor_rollout_ref' in config
      ? modelRoles(config, roles).map(({ role }) => role.model)
      : [sftSettings(config).model];
  return [...new Set(dirs)].filter((dir) => !existsSync(path.join(dir, 'config.json')));
}

function modelRoles(config: ResolvedConfig, needs: RunRoles): { role: RoleSettings; workers: number }[] {
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

function checkRole(role: RoleSettings, workers: number): void {
  const { config } = readModelShape(role.model, role.head, role.keys.model, role);
  const { parallel = {} } = parallelOptions(role.fsdp, role.ulysses, 'micro_batch', role.layout);
  const layout = resolveParallel(role.keys.layout, parallel, workers, 'fsdp');
  checkLayout(role.keys.layout, layout, { config, dir: role.model });
  roleAdapters(role, config);
}
