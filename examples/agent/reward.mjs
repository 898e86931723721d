/**
 * 1 when the last thing that the agent said is the product, 0 otherwise.
 * @param {{ response: string, groundTruth: unknown }} sample
 */
export function compute_score({ response, groundTruth }) {
  const correct = response === groundTruth;
  return { score: correct ? 1 : 0, acc: correct };
}
