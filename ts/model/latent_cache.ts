// Whether a rollout of a model can keep latents in the place of keys and values.
import type { NativeModelConfig } from '../native/bridge';

/** What is in the way, as the end of a message; null: nothing. */
export function latentCacheProblem({ latent }: Pick<NativeModelConfig, 'latent'>): string | null {
  return latent === null
    ? 'the model has no latent attention (as DeepSeek-V3 has), so there are no latents to keep'
    : null;
}
