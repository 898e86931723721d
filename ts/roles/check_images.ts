// What a policy that reads images cannot be trained with: before any worker is started.

import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { usesServers } from '../config/derived/rollout_place';
import { teachersOf } from '../config/derived/teachers';
import { ConfigError } from '../errors';
import { actorSettings } from './role_settings';

/** Reads config.json of each model, and no weight. @throws ConfigError naming the key */
export function checkImages(config: ResolvedConfig, needs: { critic: boolean; rewardModel: boolean }): void {
  const role = actorSettings(config);
  const { model, head, keys } = role;
  if (readModelShape(model, head, keys.model, role).config.vision === null) return;
  const refuse = (key: string, what: string): never => {
    throw new ConfigError(`${key}: the policy in ${model} reads images: ${what}`, key);
  };
  if (usesServers(config))
    refuse(
      'actor_rollout_ref.rollout.mode',
      'servers are sent token ids alone: expected responses of our own engine',
    );
  if (agentOf(config) === 'search_agent')
    refuse('actor_rollout_ref.rollout.agent', 'search_agent shows it text alone: expected another agent');
  if (needs.critic)
    refuse(
      'algorithm.adv_estimator',
      'a critic of its family is not there: expected an estimator without a critic, such as grpo',
    );
  if (needs.rewardModel)
    refuse('reward.reward_model.enable', 'a reward model reads text alone: expected false');
  for (const { section, keys: teacher } of teachersOf(config)) {
    const key = `${section}.model_path`;
    const path = teacher.model_path;
    if (path !== null && readModelShape(path, 'lm', key, { readsImages: true }).config.vision === null)
      refuse(key, `expected a teacher that reads them, too, got ${path}`);
  }
}
