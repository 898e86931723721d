// Machines of verl's programs whose rollout has GPUs of its own.

/** Machines with GPUs of a role. */
export interface Machines {
  nodes: number;
  perNode: number;
}

/** What verl takes a machine to have. */
const GPUS = 8;

/**
 * The workers of both on as many machines as verl needs for them, all with the same of each: here the rollout lies on machines of the
 * trainer. null: it does already.
 */
export function spreadOver(
  trainer: Machines,
  rollout: Machines,
): { nodes: number; trainerEach: number; rolloutEach: number } | 'no whole numbers' | null {
  if (rollout.nodes === 0) return null;
  const fit = trainer.perNode + rollout.perNode <= GPUS;
  const nodes = fit ? Math.max(trainer.nodes, rollout.nodes) : trainer.nodes + rollout.nodes;
  if (nodes === trainer.nodes) return null;
  const [trainerEach, rolloutEach] = [trainer, rollout].map((one) => (one.nodes * one.perNode) / nodes) as [
    number,
    number,
  ];
  return [trainerEach, rolloutEach].every((each) => Number.isInteger(each) && each > 0)
    ? { nodes, trainerEach, rolloutEach }
    : 'no whole numbers';
}
