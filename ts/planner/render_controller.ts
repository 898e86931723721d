// What `troupe plan` prints of the trainer's process.
import { formatBytes } from '../base/byte_size';
import { RUN_LIMITS } from '../base/limits';
import type { ControllerPlan, ControllerSpec } from './controller_memory';
import { formatCount, table } from './render';

/** Memory of the machine that the trainer's process runs on, and whether somebody said so: else it is this one. */
export interface ControllerMachine {
  memory: number;
  given: boolean;
}

export function renderController(
  { trained }: ControllerSpec,
  { phases, peak, process }: ControllerPlan,
  { memory, given }: ControllerMachine,
): string[] {
  const rows = phases.map(({ phase, columns, kept, work, texts, total }) => [
    phase,
    ...[columns, kept, work, texts, total].map(formatBytes),
  ]);
  const share = `${((100 * peak.total) / memory).toFixed(0)} % of the ${formatBytes(memory)} of ${given ? 'its machine' : 'this machine'}`;
  return [
    `the trainer's process, per step: ${trained.sequences} sequences, ${formatCount(trained.tokens)} tokens`,
    '',
    ...table([
      [
        'phase',
        'columns',
        'of the step before',
        'copies',
        'texts',
        `with ${formatBytes(process)} of process`,
      ],
      ...rows,
    ]),
    '',
    `peak: ${formatBytes(peak.total)} in ${peak.phase}, ${share}`,
  ];
}

/** What cannot be, or not there. */
export function controllerWarnings(
  { generated, trained }: ControllerSpec,
  { peak }: ControllerPlan,
  { memory, given }: ControllerMachine,
): string[] {
  const warnings: string[] = [];
  const tokens = Math.max(generated.tokens, trained.tokens);
  if (tokens > RUN_LIMITS.batchTokens)
    warnings.push(
      `a batch of ${formatCount(tokens)} tokens is more than the 2^31-1 that one may have, if its sequences become as long as they may: ` +
        'lower data.train_batch_size, data.gen_batch_size, rollout.n or data.max_response_length',
    );
  if (peak.total > memory)
    warnings.push(
      `the trainer's process takes ${formatBytes(peak.total)} in ${peak.phase} if all sequences become as long as they may, and ` +
        `${given ? 'its machine' : 'this machine'} has ${formatBytes(memory)}${given ? '' : ' (--controller-memory: another one)'}: ` +
        'lower data.train_batch_size, rollout.n or data.max_response_length',
    );
  return warnings;
}
