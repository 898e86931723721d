import { loadConfig } from '../../../ts/config/config';
import { roleSpec } from '../../../ts/planner/role_parts';
import { actorSettings, referenceSettings } from '../../../ts/roles/role_settings';
import { VISION_MODEL } from '../../helpers/vision_model';
import { writeConfig } from '../config/write_config';

test.each([true, false])('a tower that is frozen: %s, is planned so', (frozen) => {
  const config = loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${VISION_MODEL}`,
    `actor_rollout_ref.actor.freeze_vision_tower=${frozen}`,
  ]);
  const target = { device: 'cpu', worldSize: 1 } as const;
  expect(roleSpec(actorSettings(config), target).model.vision?.trained).toBe(!frozen);
  expect(roleSpec(referenceSettings(config) as never, target).model.vision?.numLayers).toBe(3);
});
