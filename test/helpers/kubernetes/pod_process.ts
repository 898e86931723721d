// A pod played by processes of this machine, in namespaces of its own: processes, host name, network, files.
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Container, Volume } from 'kubernetes-types/core/v1';
import { sleep } from '../e2e_process';
import type { Pod } from './jobs';
import type { PodAddress } from './pod_network';

export interface PodSurroundings {
  /** Of the pod, for its files; is there and empty. */
  directory: string;
  address: PodAddress;
  /** Directories of claims, by name. */
  claims: Readonly<Record<string, string>>;
  /** Values of a secret in base64; null: there is none of this name. */
  secret(name: string): Record<string, string> | null;
  /** Of the "image", which is this machine. */
  workingDirectory: string;
  env: Readonly<Record<string, string | undefined>>;
}

export const POD_SCRIPT = join(__dirname, 'pod.sh');

export class PodProcess {
  /** What the container has said since it was started last. */
  said = '';
  private child: ChildProcess | null = null;
  private killed = false;
  private readonly listeners = new Set<(text: string) => void>();

  constructor(
    private readonly pod: Pod,
    private readonly around: PodSurroundings,
  ) {}

  /** Why its container cannot be started yet; null: its volumes are there. */
  prepare(): string | null {
    const { directory } = this.around;
    const lines: string[] = [];
    const { volumes = [] } = this.pod.spec;
    for (const { name, mountPath, readOnly } of this.container.volumeMounts ?? []) {
      const volume = volumes.find((one) => one.name === name) as Volume;
      const source = this.source(volume);
      if (source === null)
        return `there is no ${volume.secret?.secretName ?? volume.persistentVolumeClaim?.claimName}`;
      const kind = volume.emptyDir !== undefined ? 'tmpfs' : readOnly ? 'ro' : 'bind';
      lines.push(`${kind}\t${source}\t${mountPath}\n`);
    }
    mkdirSync(join(directory, 'root'), { recursive: true });
    writeFileSync(join(directory, 'mounts'), lines.join(''));
    return null;
  }

  /** The file /etc/hosts of the pod, in which it finds the others. */
  setHosts(text: string): void {
    writeFileSync(join(this.around.directory, 'hosts'), text);
  }

  /** Starts the container, anew after it has ended. @returns its exit code when it has */
  async run(): Promise<number> {
    const { address, directory, env, workingDirectory } = this.around;
    const { hostname, shareProcessNamespace = false } = this.pod.spec;
    const name = hostname ?? this.pod.metadata.name;
    const [program, ...args] = [
      ...address.prefix,
      ...['unshare', '--mount', '--uts', '--ipc', '--pid', '--fork', '--kill-child', 'bash', POD_SCRIPT],
      ...[name, directory, workingDirectory, String(shareProcessNamespace)],
      ...(this.container.command ?? []),
      ...(this.container.args ?? []),
    ] as [string, ...string[]];
    this.said = '';
    this.killed = false;
    const child = spawn(program, args, {
      env: { ...process.env, ...env, HOSTNAME: name, ...this.environment() },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child = child;
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        this.said += text;
        for (const listener of this.listeners) listener(text);
      });
    return new Promise((done) => {
      child.once('error', () => done(128));
      child.once('close', (code) => {
        this.child = null;
        // unshare does not always say itself that its child was killed.
        done(this.killed || code === null ? 137 : code);
      });
    });
  }

  /** Hears what the container says from now on. @returns what ends that */
  listen(listener: (text: string) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** SIGTERM to the container, and SIGKILL to all of the pod after so long. */
  async end(graceMs: number): Promise<void> {
    const child = this.child;
    if (graceMs > 0) await this.signal('SIGTERM');
    for (const end = Date.now() + graceMs; Date.now() < end && this.child === child; ) await sleep(20);
    if (this.child !== null && this.child === child) await this.signal('SIGKILL');
  }

  /** To the first process of the pod; with SIGKILL all others end with it. */
  async signal(signal: NodeJS.Signals): Promise<void> {
    const child = this.child;
    while (child !== null && this.child === child) {
      const first = firstChild(child.pid as number);
      if (first !== null && reaches(first, signal)) {
        this.killed = signal === 'SIGKILL';
        return;
      }
      await sleep(10);
    }
  }

  private get container(): Container {
    return this.pod.spec.containers[0] as Container;
  }

  /** Where a volume lies on this machine; null: what it is made of is not there. */
  private source({ name, secret, persistentVolumeClaim, emptyDir }: Volume): string | null {
    if (emptyDir !== undefined) return 'none';
    if (persistentVolumeClaim !== undefined)
      return this.around.claims[persistentVolumeClaim.claimName] ?? null;
    const values = this.around.secret(secret?.secretName ?? '');
    if (values === null) return null;
    // As a kubelet has them: links to files of a directory that is replaced as a whole.
    const directory = join(this.around.directory, name);
    mkdirSync(join(directory, '..1'), { recursive: true });
    symlinkSync('..1', join(directory, '..data'));
    for (const [key, value] of Object.entries(values)) {
      writeFileSync(join(directory, '..1', key), Buffer.from(value, 'base64'), {
        mode: secret?.defaultMode ?? 0o644,
      });
      symlinkSync(join('..data', key), join(directory, key));
    }
    return directory;
  }

  private environment(): Record<string, string> {
    const { metadata } = this.pod;
    const values = (this.container.env ?? []).map(({ name, value, valueFrom }) => {
      const path = valueFrom?.fieldRef?.fieldPath ?? '';
      const annotation = /^metadata\.annotations\['(.*)'\]$/.exec(path)?.[1];
      if (value === undefined && annotation === undefined) throw new Error(`${name}: ${path} is not played`);
      return [name, value ?? metadata.annotations?.[annotation as string] ?? ''];
    });
    return Object.fromEntries(values);
  }
}

function firstChild(pid: number): number | null {
  try {
    const [first] = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ');
    return first ? Number(first) : null;
  } catch {
    return null;
  }
}

/** Sends a signal. False: the process ended after it was found. */
function reaches(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}
