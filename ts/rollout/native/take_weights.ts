import type { RoleEngine } from '../../engine/role_engine';
import { importWeights } from '../../weights/weight_import';
import type { WeightSource } from '../engine';

/** Brings new weights into the workers of our own engine; those that are trained there are there. */
export async function takeWeights(engine: RoleEngine, source: WeightSource): Promise<void> {
  if (source.kind === 'directory') await engine.reload(source.path);
  else if (source.kind === 'buckets') await importWeights(engine, source.buckets);
}
