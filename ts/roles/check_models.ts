// Whether the models of a run can be used as the configuration says: before any worker is started.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { policyRanks } from '../config/derived/pools';
import { decodingRanks } from '../config/derived/rollout_place';
import { checkLayout } from '../engine/check_layout';
import { resolveParallel } from '../engine/parallel_options';
import { checkDecoding } from './check_decoding';
import { checkExperts } from './check_experts';
import { checkImages } from './check_images';
import { checkSizes } from './check_sizes';
import { parallelOptions } from './fsdp_options';
import { modelRoles, type RunRoles } from './model_roles';
import { checkMtp, modelReading } from './mtp';
import { roleAdapters } from './role_adapters';
import { actorSettings, type RoleSettings, sftSettings } from './role_settings';
import { teacherSettings } from './teacher_settings';

/**
 * What the models cannot do, heads, layers and experts that do not divide over the workers, adapters of modules that are not there, and what {@link checkSizes} finds. Reads
 * config.json of each model, and no weight.
 * @param absent directories that are passed over
 * @throws ConfigError, TroupeError naming the key, with the numbers
 */
export function checkModels(config: ResolvedConfig, roles: RunRoles, absent: readonly string[] = []): void {
  const isThere = ({ model }: RoleSettings): boolean => !absent.includes(model);
  const actor = actorSettings(config);
  if ([actor, ...teacherSettings(config)].every(isThere)) checkImages(config, roles);
  for (const { role, workers } of modelRoles(config, roles)) if (isThere(role)) checkRole(role, workers);
  checkSizes(config, roles, absent);
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

function checkRole(role: RoleSettings, workers: number): void {
  checkMtp(role);
  const { config } = readModelShape(role.model, role.head, role.keys.model, modelReading(role));
  const { parallel = {} } = parallelOptions(role.fsdp, role.ulysses, 'micro_batch', role.layout);
  const layout = resolveParallel(role.keys.layout, parallel, workers, 'fsdp');
  checkExperts(role, config);
  checkLayout(role.keys.layout, layout, { config, dir: role.model });
  roleAdapters(role, config);
}
