import { checkOptionNames, numberOption } from '../base/check_options';

/** What one run in the sandbox may use. */
export interface SandboxLimits {
  /** Wall time, seconds; processor time may be one second more. 10 */
  timeout: number;
  /** MiB: address space of each process, and what all processes of the run hold in memory together. 1024 */
  memoryLimitMb: number;
  /** Processes and threads at once. 16 */
  maxProcesses: number;
  /** What it may print, the size of a file it writes and of each of its scratch directories, MiB. 16 */
  maxOutputMb: number;
}

export const LIMIT_KEYS = ['timeout', 'memoryLimitMb', 'maxProcesses', 'maxOutputMb'] as const;

/** @throws TroupeError INVALID_ARGUMENT for a limit that is none, `where` naming the options */
export function checkedLimits(where: string, o: Partial<SandboxLimits>): SandboxLimits {
  checkOptionNames(where, o, LIMIT_KEYS);
  return {
    timeout: numberOption(where, 'timeout', o.timeout, 10, { above: 0, max: 86_400 }),
    memoryLimitMb: numberOption(where, 'memoryLimitMb', o.memoryLimitMb, 1024, { integer: true, min: 64 }),
    maxProcesses: numberOption(where, 'maxProcesses', o.maxProcesses, 16, { integer: true, min: 1 }),
    maxOutputMb: numberOption(where, 'maxOutputMb', o.maxOutputMb, 16, { above: 0 }),
  };
}
