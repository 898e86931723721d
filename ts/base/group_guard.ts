import { type ChildProcess, type SpawnOptions, type StdioOptions, spawn } from 'node:child_process';
import type { Writable } from 'node:stream';

/**
 * Reads which groups there are until its input ends, which it does with the process at the other end, whatever that dies of. What a
 * program starts in its turn learns of no death signal of the kernel (see diesWithParent).
 */
const SHELL = `
groups=
while read -r verb group; do
  if [ "$verb" = hold ]; then
    groups="$groups $group"
  else
    rest=
    for held in $groups; do
      [ "$held" = "$group" ] || rest="$rest $held"
    done
    groups=$rest
  fi
done
for held in $groups; do
  kill -s KILL -- "-$held"
done`;

/** A program begins once its group is held: if this process were killed before that, nobody would end it. */
const GATE = 'read -r held <&3 && exec 3<&- && exec "$@"';

/** Of a program that a guard spawns. */
export interface GuardedOptions {
  env: NodeJS.ProcessEnv;
  /** Of its first three file descriptors. */
  stdio: Extract<StdioOptions, readonly unknown[]>;
}

/** Sends the signal to a process group, if there is one. */
export function signalGroup(leader: number | undefined, signal: NodeJS.Signals): void {
  if (leader === undefined) return;
  try {
    process.kill(-leader, signal);
  } catch {
    // It has gone.
  }
}

/** Process groups that are killed when this process ends: by itself, or by a shell if it is killed. */
export class GroupGuard {
  private readonly groups = new Set<number>();
  private shell: ChildProcess | null = null;
  private readonly killAll = (): void => {
    for (const leader of this.groups) signalGroup(leader, 'SIGKILL');
  };

  /** Starts a program that leads a group of its own. One that is not there ends with status 127, and the shell's word for it on its standard error. */
  spawn(program: string, args: readonly string[], { env, stdio }: GuardedOptions): ChildProcess {
    const options: SpawnOptions = { env, stdio: [...stdio, 'pipe'], detached: true };
    const child = this.start(() => spawn('/bin/sh', ['-c', GATE, 'sh', program, ...args], options));
    const gate = child.stdio?.[3] as Writable | null | undefined;
    gate?.on('error', () => undefined);
    gate?.end('held\n');
    return child;
  }

  /** Starts a process that leads a group of its own, behind the shell that will see to it, and that starts nothing before it is told to. */
  start<T extends { readonly pid?: number | undefined }>(program: () => T): T {
    if (this.shell === null) this.startShell();
    const child = program();
    if (child.pid === undefined) return child;
    if (this.groups.size === 0) process.on('exit', this.killAll);
    this.groups.add(child.pid);
    this.shell?.stdin?.write(`hold ${child.pid}\n`);
    return child;
  }

  /** The group has ended: its number may be given anew. */
  drop(leader: number | undefined): void {
    if (leader === undefined || !this.groups.delete(leader)) return;
    this.shell?.stdin?.write(`drop ${leader}\n`);
    if (this.groups.size > 0) return;
    process.off('exit', this.killAll);
    this.shell?.stdin?.end();
    this.shell = null;
  }

  private startShell(): void {
    // A group of its own: a Ctrl-C is not for it.
    const shell = spawn('/bin/sh', ['-c', SHELL], { stdio: ['pipe', 'ignore', 'ignore'], detached: true });
    // Without a shell groups still end where this process sees to it; without a file descriptor left there is no pipe.
    shell.on('error', () => undefined);
    shell.stdin?.on('error', () => undefined);
    // The next group gets another one, with all that there are.
    shell.on('exit', () => {
      if (this.shell === shell) this.shell = null;
    });
    shell.unref();
    for (const leader of this.groups) shell.stdin?.write(`hold ${leader}\n`);
    this.shell = shell;
  }
}
