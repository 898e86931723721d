// What runs the programs that a model writes: those that are scored, and those of an agent's tool.
import type { ResolvedConfig } from '../config/config';
import { PythonSandbox } from '../reward/code/python_sandbox';
import { type CodeRunner, once } from '../reward/code/runner';
import { SandboxFusion } from '../reward/code/sandbox_fusion';

/**
 * Sandbox Fusion where there is a server, else child processes here; made when it is first needed. A run has one: its limits are of all that
 * the run has going on at a time.
 */
export function codeRunner({ reward }: ResolvedConfig): () => Promise<CodeRunner> {
  const { sandbox, sandbox_fusion: fusion } = reward;
  const create = async (): Promise<CodeRunner> =>
    fusion.url === null
      ? await PythonSandbox.create({
          isolation: sandbox.isolation,
          python: sandbox.python,
          readable: sandbox.readable,
          timeout: sandbox.timeout,
          memoryLimitMb: sandbox.memory_limit_mb,
          maxProcesses: sandbox.max_processes,
          maxOutputMb: sandbox.max_output_mb,
          maxConcurrent: sandbox.max_concurrent,
        })
      : new SandboxFusion({
          url: fusion.url,
          maxConcurrent: fusion.max_concurrent,
          memoryLimitMb: fusion.memory_limit_mb,
          timeout: sandbox.timeout,
        });
  return once(create);
}
