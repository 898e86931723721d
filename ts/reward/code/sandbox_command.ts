/** Limits of one program. */
export interface SandboxLimits {
  /** Wall time of one run, seconds; processor time may be one second more. */
  timeout: number;
  /** Address space of each process, MiB. */
  memoryLimitMb: number;
  /** Processes and threads at once. */
  maxProcesses: number;
  /** What it may print, the size of a file it writes and of each of its scratch directories, MiB. */
  maxOutputMb: number;
}

export type Isolation = 'namespaces' | 'process';

export interface SandboxCommand {
  program: string;
  args: string[];
}

/** Where system programs are; the caller's own PATH is not for the sandbox. */
export const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Name of the file that the program is written to, in its working directory. */
const PROGRAM = 'solution.py';

// Runs as process 1 of its own process ids: when it ends, for whatever reason, the kernel ends all the others.
// Everything that was writable becomes read-only. Directories that anyone may write to, and those with other
// programs' sockets, are covered by empty ones in memory, which go when the last process goes. A file system mounted where
// the caller's user cannot go (another user's directory) cannot be changed by that user, nor reached by the program.
const mounts = (sizeMb: number): string => `
while read -r _ _ _ _ target options _; do
  case $target in /proc*|/sys*) continue;; esac
  target=$(printf %b "$target")
  [ -e "$target" ] || continue
  case $options in rw*) mount -o "remount,bind,ro\${options#rw}" "$target";; esac
done </proc/self/mountinfo
for scratch in /tmp /var/tmp /dev/shm /run; do
  if [ -d $scratch ] && [ ! -L $scratch ]; then
    mount -t tmpfs -o size=${sizeMb}m,mode=1777,nosuid,nodev tmpfs $scratch
  fi
done
cd /tmp`;

/** What takes a signal to all processes of a run, whatever they did to escape, is the end of process 1. */
const script = (isolation: Isolation, limits: SandboxLimits): string => `set -e
umask 022${isolation === 'namespaces' ? mounts(Math.ceil(limits.maxOutputMb)) : ''}
cat <&3 >${PROGRAM}
echo ready >&3
exec 3>&-
set +e
"$@"
exit $?`;

/**
 * The command that runs a Python program under limits: util-linux's setpriv, unshare and prlimit around python. The program
 * comes through file descriptor 3, to which "ready" is written back when the sandbox stands. `uid`: the user that the
 * program runs as, when the caller is root; null: the caller's own.
 */
export function sandboxCommand(
  python: string,
  isolation: Isolation,
  limits: SandboxLimits,
  uid: number | null,
): SandboxCommand {
  const mib = 1024 * 1024;
  const user = uid === null ? [] : ['--reuid', String(uid), '--regid', String(uid), '--clear-groups'];
  // Outside of a user namespace only root may give up what it could do later.
  const capabilities =
    uid !== null || isolation === 'namespaces' ? ['--bounding-set=-all', '--inh-caps=-all'] : [];
  const limited = [
    'setpriv',
    ...['--pdeathsig', 'KILL', '--no-new-privs', ...user, ...capabilities],
    'prlimit',
    `--as=${limits.memoryLimitMb * mib}`,
    `--cpu=${Math.ceil(limits.timeout) + 1}`,
    `--nproc=${limits.maxProcesses}`,
    `--fsize=${Math.ceil(limits.maxOutputMb * mib)}`,
    '--nofile=64',
    '--core=0',
    python,
    PROGRAM,
  ];
  const namespaces = [
    'unshare',
    ...(uid === null ? ['--user', '--map-root-user'] : []),
    ...['--net', '--ipc', '--uts', '--pid', '--mount', '--fork', '--kill-child', '--mount-proc'],
  ];
  const shell = ['sh', '-c', script(isolation, limits), 'sh', ...limited];
  // The signal at the parent's death: a run does not outlive a trainer that was killed.
  const args = ['--pdeathsig', 'KILL', ...(isolation === 'namespaces' ? namespaces : []), ...shell];
  return { program: 'setpriv', args };
}

/** All that the program's environment holds. `directory`: its working directory. */
export function sandboxEnvironment(directory: string): Record<string, string> {
  return {
    PATH: SYSTEM_PATH,
    HOME: directory,
    TMPDIR: directory,
    LANG: 'C.UTF-8',
    // The order of sets, and so what a program prints, repeats.
    PYTHONHASHSEED: '0',
    PYTHONDONTWRITEBYTECODE: '1',
    // Numerical libraries start a thread per core, which the limits do not allow.
    OMP_NUM_THREADS: '1',
    OPENBLAS_NUM_THREADS: '1',
    MKL_NUM_THREADS: '1',
  };
}
