/**
 * The verifiable reward: 1 when the response is the right answer and nothing else, 0 otherwise.
 * @param {{ response: string, groundTruth: unknown }} sample
 */
export function compute_score({ response, groundTruth }) {
  const correct = response === groundTruth;
  return { score: correct ? 1 : 0, acc: correct };
}
