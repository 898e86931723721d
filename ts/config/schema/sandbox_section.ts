import { RUN_LIMITS } from '../../base/limits';
import { above, bool, choice, count, field, int, moved, orNull, str, strings } from './field';

/** `reward.sandbox`: programs of the code data sets, run on this machine. */
export const sandboxKeys = {
  isolation: field(
    choice('namespaces', 'process'),
    'namespaces',
    'namespaces: no network, files read-only, own process ids; an error where the kernel refuses. process: limits only, the ' +
      'program reaches the network and all that its user may.',
  ),
  python: field(
    orNull(str),
    null,
    'Python 3 that runs the programs; null: the first on PATH that works in the sandbox.',
  ),
  readable: field(
    strings,
    [],
    "Files and directories (absolute paths) that programs may read besides the system's and the interpreter's.",
  ),
  timeout: field(above(0, 86_400), 10, 'Seconds that one test may take.'),
  memory_limit_mb: field(
    int(64, RUN_LIMITS.mebibytes),
    1024,
    'MiB: address space of each process, and memory of all processes of a program together; Sandbox Fusion has its own.',
  ),
  max_processes: field(count('processes'), 16, 'Processes and threads of one program.'),
  max_output_mb: field(
    above(0, RUN_LIMITS.mebibytes),
    16,
    'What a program may print, and write to files, MiB.',
  ),
  max_concurrent: field(
    orNull(count('processes')),
    null,
    'Programs at once; null: the cores of this machine.',
  ),
  continuous: field(
    bool,
    true,
    'Score: the share of the first 10 tests that pass, as verl has it; false: 1 when all tests pass, else 0.',
  ),
};

/** `reward.sandbox_fusion`: the same over HTTP. */
export const sandboxFusionKeys = {
  url: field(
    orNull(str),
    null,
    'Sandbox Fusion server, http(s)://host[:port][/run_code]; null: programs run on this machine.',
  ),
  max_concurrent: field(count('processes'), 64, 'Requests at once.'),
  memory_limit_mb: field(count('mebibytes'), 1024, 'Memory of one program, MiB.'),
};

/** Where older versions of verl keep them. */
export const olderSandboxFusionKeys = {
  url: moved('reward.sandbox_fusion.url'),
  max_concurrent: moved('reward.sandbox_fusion.max_concurrent'),
  memory_limit_mb: moved('reward.sandbox_fusion.memory_limit_mb'),
};
