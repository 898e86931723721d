// Whether every model of a run can be spread as the configuration says: before any worker is started.
import type { ResolvedConfig } from '../config/config';
import { policyRanks, rewardRanks } from '../config/derived/pools';
import { decodingRanks } from '../config/derived/rollout_place';
import { checkLayout } from '../engine/check_layout';
import { resolveParallel } from '../engine/parallel_options';
import { readModelShape } from '../planner/model_shape';
import { checkDecoding } from '../roles/check_decoding';
import { parallelOptions } from '../roles/fsdp_options';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
} from '../roles/role_settings';
import { teacherSettings } from '../roles/teacher_settings';

interface Roles {
  reference: boolean;
  critic: boolean;
  rewardModel: boolean;
}

/**
 * Reads config.json of each model, and no weight.
 * @throws ConfigError, TroupeError naming what does not divide, with the numbers
 */
export function checkLayouts(config: ResolvedConfig, needs: Roles): void {
  check(actorSettings(config), policyRanks(config));
  if (decodingRanks(config) > 1) {
    const role = actorSettings(config);
    checkDecoding(config, readModelShape(role.model, role.head, role.keys.model, role).config);
  }
  const reference = needs.reference ? referenceSettings(config) : null;
  if (reference !== null) check(reference, policyRanks(config));
  for (const teacher of teacherSettings(config)) check(teacher, policyRanks(config));
  if (needs.critic) check(criticSettings(config), policyRanks(config));
  if (needs.rewardModel) check(rewardModelSettings(config), rewardRanks(config));
}

function check(role: RoleSettings, workers: number): void {
  const { parallel = {} } = parallelOptions(role.fsdp, role.ulysses, 'micro_batch', role.layout);
  const layout = resolveParallel(role.keys.layout, parallel, workers, 'fsdp');
  const { tp, cp, ep } = layout.parallel;
  if (layout.ulysses * tp * cp * ep * layout.pipeline.stages === 1) return;
  checkLayout(role.keys.layout, layout, {
    config: readModelShape(role.model, role.head, role.keys.model, role).config,
    dir: role.model,
  });
}
