import { existsSync, lstatSync, readlinkSync, realpathSync } from 'node:fs';
import type { SandboxLimits } from './limits';
import { seccompFilter } from './seccomp';

/** What stands between a program and the machine: bubblewrap or util-linux's unshare, both with namespaces; limits alone. */
export type Mechanism = 'bubblewrap' | 'unshare' | 'process';

/** One run as the mechanisms see it. */
export interface Confinement {
  /** Program and arguments. */
  command: readonly string[];
  /** All of its environment. */
  env: Readonly<Record<string, string>>;
  limits: SandboxLimits;
  /** The user that it runs as, when the caller is root; null: the caller's own. */
  uid: number | null;
  /** Real path of the directory that it may write to; null: none beside its scratch directories. */
  writable: string | null;
  /** Files and directories that it may read besides the system's. */
  readable: readonly string[];
  /** Where it starts. */
  directory: string;
  /** Names and sizes in bytes of the files for that directory, whose content comes through {@link CONTROL_FD} in this order. */
  files: readonly (readonly [name: string, bytes: number])[];
}

export interface SandboxCommand {
  program: string;
  args: string[];
}

/** Where system programs are; the caller's own PATH is not for the sandbox. */
export const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
/** Files go in here, "ready" comes back when the sandbox stands, and a last line lets the program start. */
export const CONTROL_FD = 3;
/** Bubblewrap reads its seccomp filter here. */
export const FILTER_FD = 4;

const MIB = 1024 * 1024;
/** Covered by empty directories in memory: anyone may write there, or other programs have their sockets there. */
const SCRATCH = ['/tmp', '/var/tmp', '/dev/shm', '/run'];
/** What programs need to start. Of /etc: nothing that holds a secret. */
const SYSTEM_DIRECTORIES = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'];
const SYSTEM_FILES = ['ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'alternatives', 'localtime']
  .concat(['passwd', 'group', 'nsswitch.conf', 'mime.types', 'magic'])
  .map((name) => `/etc/${name}`);

/** Whatever the caller inherited from who started it is not for the program; of the shells only bash closes numbers above 9. */
const closing = (last: number): string =>
  `for f in /proc/self/fd/*; do n=\${f##*/}; [ "$n" -le ${last} ] || eval "exec $n>&-"; done; exec "$@"`;

// Runs as process 1 of its own process ids: when it ends, for whatever reason, the kernel ends all the others. By the time that it
// is told to go on, all processes up to the caller have asked to be killed with their parents; a caller that died before says nothing.
const script = ({ files, directory }: Confinement, mounts = ''): string => `set -e
umask 022
${mounts}
cd ${quoted(directory)}
${files.map(([name, bytes]) => `head -c ${bytes} <&${CONTROL_FD} >${quoted(name)}`).join('\n')}
echo ready >&${CONTROL_FD}
read -r go <&${CONTROL_FD} || exit 125
exec ${CONTROL_FD}>&-
set +e
"$@"
exit $?`;

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

// Everything that was writable becomes read-only, but for the directory that is to be written to. A file system mounted
// where the caller's user cannot go (another user's directory) cannot be changed by that user, nor reached by the program.
// What the scratch directories would cover is kept aside first.
function mountScript({ limits, writable, readable }: Confinement): string {
  const scratch = (path: string): boolean => SCRATCH.some((dir) => path.startsWith(`${dir}/`));
  const covered = [...readable, ...(writable === null ? [] : [writable])].filter(scratch);
  const aside = (i: number): string => `/dev/shm/kept-${i}`;
  const size = Math.ceil(limits.maxOutputMb);
  const tmpfs = `mount -t tmpfs -o size=${size}m,mode=1777,nosuid,nodev tmpfs`;
  const make = (like: string, path: string): string =>
    `mkdir -p ${quoted(path.slice(0, path.lastIndexOf('/')))}; if [ -d ${quoted(like)} ]; then mkdir -p ${quoted(path)}; else : >${quoted(path)}; fi`;
  const kept = writable === null ? '' : scratch(writable) ? aside(covered.indexOf(writable)) : writable;
  return `
${covered.length > 0 ? `${tmpfs} /dev/shm` : ''}
${covered.map((path, i) => `${make(path, aside(i))}; mount --bind ${quoted(path)} ${aside(i)}`).join('\n')}
${writable === null || scratch(writable) ? '' : `mount --bind ${quoted(writable)} ${quoted(writable)}`}
while read -r _ _ _ _ target options _; do
  case $target in /proc*|/sys*) continue;; esac
  target=$(printf %b "$target")
  [ -e "$target" ] && [ "$target" != ${quoted(kept)} ] || continue
  case $options in rw*) mount -o "remount,bind,ro\${options#rw}" "$target";; esac
done </proc/self/mountinfo
for scratch in ${SCRATCH.filter((dir) => dir !== '/dev/shm').join(' ')}; do
  if [ -d $scratch ] && [ ! -L $scratch ]; then ${tmpfs} $scratch; fi
done
${covered.map((path, i) => `${make(aside(i), path)}; mount --move ${aside(i)} ${quoted(path)}`).join('\n')}
if [ -d /dev/shm ] && [ ! -L /dev/shm ]; then ${tmpfs} /dev/shm; fi`;
}

/** The last steps to the program: limits, then an environment that nothing before it has seen. */
function limited({ command, env, limits }: Confinement): string[] {
  return [
    'prlimit',
    `--as=${limits.memoryLimitMb * MIB}`,
    `--cpu=${Math.ceil(limits.timeout) + 1}`,
    `--nproc=${limits.maxProcesses}`,
    `--fsize=${Math.ceil(limits.maxOutputMb * MIB)}`,
    '--nofile=64',
    '--core=0',
    'env',
    '-i',
    ...Object.entries(env).map(([name, value]) => `${name}=${value}`),
    ...command,
  ];
}

const dropped = ['--bounding-set=-all', '--inh-caps=-all'];
const asUser = (uid: number | null): string[] =>
  uid === null ? [] : ['--reuid', String(uid), '--regid', String(uid), '--clear-groups'];

/** A path and where its symbolic links lead. */
const paths = (path: string): string[] => {
  try {
    return [...new Set([path, realpathSync(path)])];
  } catch {
    return [path];
  }
};

/** Directories above a path, from the top. Left to itself, bubblewrap makes them for their owner alone. */
const above = (path: string): string[] =>
  [...path.matchAll(/\//g)]
    .map(({ index }) => path.slice(0, index))
    .filter((directory) => directory !== '')
    .flatMap((directory) => ['--dir', directory]);

function bubblewrap(run: Confinement): string[] {
  const { uid, limits, readable, writable } = run;
  const scratch = SCRATCH.flatMap((directory) => [
    ...['--size', String(Math.ceil(limits.maxOutputMb * MIB)), '--perms', '1777', '--tmpfs', directory],
  ]);
  const system = SYSTEM_DIRECTORIES.filter((path) => existsSync(path)).flatMap((path) =>
    lstatSync(path).isSymbolicLink() ? ['--symlink', readlinkSync(path), path] : ['--ro-bind', path, path],
  );
  return [
    'bwrap',
    ...['--unshare-net', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try'],
    ...(uid === null ? ['--unshare-user'] : []),
    ...['--as-pid-1', '--die-with-parent'],
    ...(seccompFilter() === null ? [] : ['--seccomp', String(FILTER_FD)]),
    ...['--cap-drop', 'ALL'],
    // For process 1 to write files for another user and to start a program as that user; the program has none of them.
    ...(uid === null
      ? []
      : ['SETUID', 'SETGID', 'SETPCAP', 'DAC_OVERRIDE'].flatMap((name) => ['--cap-add', `CAP_${name}`])),
    ...['--ro-bind', '/usr', '/usr', ...system],
    ...['--dir', '/etc', ...SYSTEM_FILES.flatMap((path) => ['--ro-bind-try', path, path])],
    ...['--proc', '/proc', '--dev', '/dev', '--dir', '/var', ...scratch],
    ...readable.flatMap(paths).flatMap((path) => [...above(path), '--ro-bind', path, path]),
    ...(writable === null ? [] : [...above(writable), '--bind', writable, writable]),
    ...['--remount-ro', '/', '--remount-ro', '/dev', '--chdir', '/'],
    '--',
    ...['sh', '-c', script(run), 'sh'],
    ...['setpriv', '--pdeathsig', 'KILL', '--no-new-privs', ...asUser(uid), ...(uid === null ? [] : dropped)],
    ...limited(run),
  ];
}

function unshare(run: Confinement): string[] {
  return [
    'unshare',
    ...(run.uid === null ? ['--user', '--map-root-user'] : []),
    ...['--net', '--ipc', '--uts', '--pid', '--mount', '--fork', '--kill-child', '--mount-proc'],
    ...['sh', '-c', script(run, mountScript(run)), 'sh'],
    ...['setpriv', '--pdeathsig', 'KILL', '--no-new-privs', ...asUser(run.uid), ...dropped],
    ...limited(run),
  ];
}

function limitsAlone(run: Confinement): string[] {
  // Outside of a user namespace only root may give up what it could do later.
  const capabilities = run.uid === null ? [] : dropped;
  return [
    ...['sh', '-c', script(run), 'sh'],
    ...['setpriv', '--pdeathsig', 'KILL', '--no-new-privs', ...asUser(run.uid), ...capabilities],
    ...limited(run),
  ];
}

/** The command that runs a program under limits: bash, setpriv and prlimit around it, and between them the mechanism. */
export function sandboxCommand(mechanism: Mechanism, run: Confinement): SandboxCommand {
  const confined = { bubblewrap, unshare, process: limitsAlone }[mechanism](run);
  const last = mechanism === 'bubblewrap' ? FILTER_FD : CONTROL_FD;
  // The signal at the parent's death: a run does not outlive a trainer that was killed.
  return {
    program: 'bash',
    // Where stdin is a socket, as Node's pipes are, bash would take itself for a remote shell and read ~/.bashrc.
    args: ['--norc', '-c', closing(last), 'bash', 'setpriv', '--pdeathsig', 'KILL', ...confined],
  };
}
