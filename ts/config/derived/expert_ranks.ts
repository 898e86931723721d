// How many ranks hold different experts, by verl's two keys.

interface ExpertKeys {
  tensor_model_parallel_size: number;
  expert_model_parallel_size: number;
  expert_tensor_parallel_size: number | null;
}

/**
 * Ranks that hold different experts, each of which is cut over the tensor-parallel ranks as every other matrix is. With T for
 * expert_tensor_parallel_size Megatron cuts experts into T parts and gives other experts to the rest: the E x T ranks that share them hold
 * as many bytes of them either way. Not an integer where E x T and the tensor-parallel ranks do not divide.
 */
export function expertRanks(keys: ExpertKeys): number {
  const { tensor_model_parallel_size: tp, expert_model_parallel_size: ep } = keys;
  const sharing = ep * (keys.expert_tensor_parallel_size ?? tp);
  // Fewer than the tensor-parallel ranks: those cut them, and nobody holds others.
  return tp % sharing === 0 ? 1 : sharing / tp;
}
