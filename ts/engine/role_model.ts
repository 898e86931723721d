// A model as a role takes it.
import type { LoadedModel } from '../checkpoint/model_dir';
import { TroupeError } from '../errors';
import { valueHeadName } from '../model/tensor_names';
import type { NativeModelConfig } from '../native/bridge';

/** Of a model whose tower is trained, or stays as it is. */
export const configWithTower = (config: NativeModelConfig, frozen: boolean): NativeModelConfig =>
  config.vision === null || !frozen ? config : { ...config, vision: { ...config.vision, trained: false } };

/** Whose tower is trained, or stays as it is. */
export function withTower(model: LoadedModel, frozen: boolean): LoadedModel {
  return { ...model, config: configWithTower(model.config, frozen) };
}

/** A reward model does not learn: without a trained head its scores would mean nothing. */
export function rewardModel(model: LoadedModel): LoadedModel {
  if (model.freshHead) {
    const name = `${valueHeadName(model.config.family)}.weight`;
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${model.dir} has no ${name} [1, ${model.config.hiddenSize}]: expected a reward model, a token-classification ` +
        'directory with a trained head of one label (num_labels 1)',
    );
  }
  // The place after the last token, at which nothing is read, needs no position of its own under rotary encoding.
  if (model.config.positions !== 'rope') return model;
  return { ...model, config: { ...model.config, maxPositions: model.config.maxPositions + 1 } };
}
