import { readTensors } from '../../../ts/checkpoint/safetensors';
import { loadConfig } from '../../../ts/config/config';
import { weightFile } from '../../../ts/planner/engine_request';
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

test('of a mixture of Qwen3-VL tower and experts are planned, and each tensor of the files is read once', () => {
  const { model: path } = visionModel('qwen3_vl_moe').options;
  const config = loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${path}`,
    'actor_rollout_ref.model.lora_rank=4',
  ]);
  const spec = roleSpec(actorSettings(config), target);
  expect(spec.model).toMatchObject({
    family: 'qwen3_vl_moe',
    vision: { deepstackLayers: [0, 2] },
    moe: { numExperts: 6, topK: 2, normalizeTopK: true, sharedIntermediateSize: 0 },
    moeLayers: [true, false, true],
  });
  expect(spec.lora?.mapping.map(({ hf }) => hf)).toContain(
    'base_model.model.model.language_model.layers.1.mlp.down_proj.lora_A.weight',
  );
  const stored = [...readTensors(path).values()];
  expect(weightFile(spec).size).toBe(stored.reduce((sum, { bytes }) => sum + bytes, 0));
});
