import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { textPart } from '../../ts/model/text_part';
import { integers, type TestTensor } from './safetensors';

/** Where the conformance tests compute; scripts/gpu-check.sh sets it. Always in float32, also on a GPU. */
export const TEST_DEVICE = process.env['TROUPE_TEST_DEVICE'] === 'cuda' ? 'cuda' : 'cpu';

/** How workers share a model of the conformance tests; `dir` has its config.json. */
export function layoutsOf(dir: string): TestLayout[] {
  const one = { layout: 'one worker', worldSize: 1, parallel: {} };
  if (TEST_DEVICE === 'cuda') return [one];
  const config = textPart(JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8')));
  const experts = ['num_experts', 'num_local_experts', 'n_routed_experts'].some(
    (key) => Number(config[key]) > 0,
  );
  // Which no pipeline may cut.
  const joined = ['num_kv_shared_layers', 'hidden_size_per_layer_input'].some(
    (key) => Number(config[key]) > 0,
  );
  const tp = { tp: 2, sequenceParallel: true };
  return [
    one,
    joined
      ? { layout: 'tp 2', worldSize: 2, parallel: tp }
      : { layout: 'tp 2 x pp 2', worldSize: 4, parallel: { ...tp, pp: 2 } },
    { layout: 'cp 2', worldSize: 2, parallel: { cp: 2 } },
    ...(experts ? [{ layout: 'ep 2', worldSize: 2, parallel: { ep: 2 } }] : []),
  ];
}

export interface TestLayout {
  layout: string;
  worldSize: number;
  parallel: NonNullable<EngineOptions['parallel']>;
}

export const CONFORMANCE = path.join(__dirname, '..', 'fixtures', 'conformance');

/** A verl-layout batch ([B, P+R], prompts left-padded, responses right-padded) as a Batch. */
export function batchOf(
  tensors: Record<string, TestTensor>,
  prefix = '',
  columns: Record<string, ArrayLike<number>> = {},
): { batch: Batch; responseLength: number } {
  const responseLength = tensors[`${prefix}responses`]?.shape[1] ?? 0;
  const batch = Batch.fromPadded({
    inputIds: integers(tensors, `${prefix}input_ids`),
    attentionMask: Array.from(integers(tensors, `${prefix}attention_mask`), Number),
    responseLength,
    responseMask: Array.from(integers(tensors, `${prefix}response_mask`), Number),
    columns,
  });
  return { batch, responseLength };
}

/** Workers by their number, started when they are first asked for. */
export class TestGroups {
  private readonly groups = new Map<number, Promise<WorkerGroup>>();

  of(worldSize: number): Promise<WorkerGroup> {
    const own =
      this.groups.get(worldSize) ??
      WorkerGroup.launch({ worldSize, device: TEST_DEVICE, ...(worldSize > 1 ? { numThreads: 1 } : {}) });
    this.groups.set(worldSize, own);
    return own;
  }

  async close(): Promise<void> {
    for (const group of this.groups.values()) await (await group).close();
  }
}
