import { loadConfig } from '../../../ts/config/config';
import { roleSpec } from '../../../ts/planner/role_parts';
import { actorSettings, referenceSettings } from '../../../ts/roles/role_settings';
import { VISION_MODEL, visionModel } from '../../helpers/vision_model';
import { writeConfig } from '../config/write_config';

const target = { device: 'cpu', worldSize: 1 } as const;

test.each([true, false])('a tower that is frozen: %s, is planned so', (frozen) => {
  const config = loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${VISION_MODEL}`,
    `actor_rollout_ref.actor.freeze_vision_tower=${frozen}`,
  ]);
  expect(roleSpec(actorSettings(config), target).model.vision?.trained).toBe(!frozen);
  expect(roleSpec(referenceSettings(config) as never, target).model.vision?.numLayers).toBe(3);
});

test.each(['qwen3_5', 'qwen3_5_moe'] as const)('the tower of %s is planned where it is read', (name) => {
  const planned = (reads: boolean) =>
    roleSpec(
      actorSettings(
        loadConfig(writeConfig(), [
          `actor_rollout_ref.model.path=${visionModel(name).options.model}`,
          `actor_rollout_ref.model.read_images=${reads}`,
        ]),
      ),
      target,
    ).model;
  expect(planned(true)).toMatchObject({ family: name, vision: { hiddenSize: 16, deepstackLayers: [] } });
  expect(planned(false)).toMatchObject({ family: `${name}_text`, vision: null });
});
