import { badOption, checkOptionNames, choiceOption, requirePath } from '../base/check_options';
import { rankZero } from '../controller/dispatch';
import { loadCheckpoint, saveAdapter, saveCheckpoint, saveModel } from '../engine/engine_checkpoint';
import type { OffloadOptions } from '../engine/offload_options';
import { RoleEngine } from '../engine/role_engine';
import type { WeightBucket, WeightTransfer } from '../weights/weight_bucket';
import { exportWeights, type WeightExport, type WeightExportOptions } from '../weights/weight_export';
import { importWeights } from '../weights/weight_import';

/** What actor and critic have in common: weights and optimiser state that are saved, moved and handed out. */
export abstract class TrainedModel {
  protected constructor(
    /** The engine below, for scripts that need single parameters or gradients. */
    readonly engine: RoleEngine,
  ) {
    const { name } = new.target;
    if (!(engine instanceof RoleEngine))
      throw badOption(name, `it is made by await ${name}.create(options), not by new ${name}`);
  }

  /** Optimiser steps that changed the weights; one skipped for a non-finite gradient does not count. */
  async optimizerSteps(): Promise<number> {
    this.engine.checkOpen();
    return await rankZero(this.engine.group, this.engine.name, 'optimizerSteps', []);
  }

  /**
   * Writes a Hugging Face directory (of a critic one for token classification): config, tokenizer files and safetensors. Default dtype: each tensor's as loaded. Adapters are
   * merged into the weights that are computed with, in float32 before they are rounded to the dtype.
   */
  async saveModel(dir: string, o: { dtype?: 'float32' | 'bfloat16' } = {}): Promise<void> {
    this.engine.checkOpen();
    requirePath('saveModel', 'a directory', dir);
    checkOptionNames('saveModel', o, ['dtype']);
    const dtype =
      o.dtype === undefined
        ? null
        : choiceOption('saveModel', 'dtype', o.dtype, ['float32', 'bfloat16'], 'float32');
    await saveModel(this.engine, dir, dtype);
  }

  /** Writes the adapters, and a critic's head, as PEFT does: adapter_config.json and adapter_model.safetensors (float32). */
  async saveAdapter(dir: string): Promise<void> {
    requirePath('saveAdapter', 'a directory', dir);
    await saveAdapter(this.engine, dir);
  }

  /**
   * Writes weights (float32, as a Hugging Face directory; with `lora` the adapters, and a critic's head, alone), optimiser state and step count, all or
   * nothing: an update, or other weights, that come in between are INVALID_ARGUMENT.
   */
  async saveCheckpoint(dir: string): Promise<void> {
    this.engine.checkOpen();
    requirePath('saveCheckpoint', 'a directory', dir);
    await saveCheckpoint(this.engine, dir);
  }

  /**
   * Continues from what saveCheckpoint wrote, bitwise as if it had never stopped. A load that fails in the middle, or an optimiser step that
   * does, leaves neither one state nor the other: every call that would use it rejects with INVALID_MODEL until a load has succeeded.
   */
  async loadCheckpoint(dir: string): Promise<void> {
    requirePath('loadCheckpoint', 'a directory that saveCheckpoint wrote', dir);
    await loadCheckpoint(this.engine, dir);
  }

  /**
   * The weights in buckets, for an inference engine outside: `for await (const { parts } of actor.exportWeights())`. Names, shapes and
   * bytes are known before the first bucket. Throws INVALID_ARGUMENT for options that make no sense.
   */
  exportWeights(o: WeightExportOptions = {}): WeightExport {
    return exportWeights(this.engine, o);
  }

  /** Replaces all weights by those of a stream such as exportWeights gives; see {@link importWeights}. */
  async importWeights(source: AsyncIterable<WeightBucket> | Iterable<WeightBucket>): Promise<WeightTransfer> {
    return await importWeights(this.engine, source);
  }

  /**
   * Moves parts of the state to the host (pinned memory beside a GPU); default: all. From there they come to the device group by
   * group for their use, so every call works with the same results, until `onload` brings them back for good. Errors:
   * INVALID_ARGUMENT for gradients or moments of one that was created with optim: null.
   */
  async offload(parts?: OffloadOptions): Promise<void> {
    await this.engine.move('offload', parts);
  }

  /** Back to the device; default: all. */
  async onload(parts?: OffloadOptions): Promise<void> {
    await this.engine.move('onload', parts);
  }

  /** Idempotent. */
  close(): Promise<void> {
    return this.engine.close();
  }
}
