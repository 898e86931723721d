// A Kubernetes for the tests on this machine, for the kubectl that is installed: an API server of our own, controllers of Jobs, JobSets and
// TrainJobs, and a kubelet that plays pods by processes. What a cluster does beside that is not there, see docs/launching.md.
import { spawn, spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import yaml from 'js-yaml';
import type { PodSpec, PodStatus } from 'kubernetes-types/core/v1';
import { type Exit, sleep } from '../e2e_process';
import { endWithEnvironment, unlisted, withEnvironment } from '../left_over';
import { namespacesPermitted } from '../namespaces';
import { ApiServer } from './api_server';
import { reconcileCustomResources } from './custom_resources';
import { JobController, type Pod } from './jobs';
import { Kubelet } from './kubelet';
import { ObjectStore } from './objects';
import { POD_SCRIPT } from './pod_process';

function obstacle(): string | null {
  const missing = ['kubectl', 'openssl', 'ip', 'nsenter', 'unshare'].filter(
    (name) => spawnSync('sh', ['-c', `command -v ${name}`], { stdio: 'ignore' }).status !== 0,
  );
  if (missing.includes('kubectl')) return 'kubectl is not installed: apt-get install kubernetes-client';
  if (missing.length > 0) return `${missing.join(', ')} not installed`;
  return process.getuid?.() === 0 && namespacesPermitted ? null : 'not root, or no namespaces are permitted';
}

/** `describe`, or skipped with the reason in its name. */
export function describeWithKubernetes(name: string, tests: () => void): void {
  const reason = obstacle();
  if (reason === null) describe(name, tests);
  else describe.skip(`${name} (${reason})`, tests);
}

const ROOT = resolve(__dirname, '../../..');
const WAIT_MS = 240_000;

export class KubernetesCluster {
  readonly store = new ObjectStore();
  private readonly mark = unlisted();
  private readonly directory = mkdtempSync(join(tmpdir(), 'troupe-kubernetes-'));
  private readonly kubelet: Kubelet;
  private readonly jobs: JobController;
  private api: ApiServer | null = null;
  private asked = false;
  private stopped = false;

  /** `claims`: the directory of each volume that pods may claim. Waits of the cluster before something is tried again are divided by `haste`. */
  static async start(claims: Record<string, string>, haste: number): Promise<KubernetesCluster> {
    const cluster = new KubernetesCluster(claims, haste);
    cluster.api = await ApiServer.start(cluster.directory, cluster.store, cluster.kubelet);
    cluster.writeKubeconfig();
    return cluster;
  }

  private constructor(claims: Record<string, string>, haste: number) {
    const { directory, store } = this;
    const backoffMs = 10_000 / haste;
    this.kubelet = new Kubelet(store, {
      directory,
      claims,
      backoffMs,
      workingDirectory: imageIn(directory),
      env: this.mark,
    });
    this.jobs = new JobController(store, backoffMs, (ms) => void setTimeout(() => this.look(), ms));
    store.subscribe(() => this.look());
  }

  get server(): ApiServer {
    return this.api as ApiServer;
  }

  /** For programs that are to speak to the cluster. */
  get env(): Record<string, string> {
    return { KUBECONFIG: join(this.directory, 'config'), ...this.mark };
  }

  kubectl(...args: string[]): Promise<Exit> {
    return this.run(['kubectl', ...args]);
  }

  /** A program beside the cluster, to its end. */
  async run(command: readonly string[], cwd = ROOT): Promise<Exit> {
    const [program, ...args] = command as [string, ...string[]];
    const child = spawn(program, args, {
      cwd,
      env: { ...process.env, ...this.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const said = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      child[name].setEncoding('utf8').on('data', (text: string) => {
        said[name] += text;
      });
    return new Promise((done, fail) => {
      child.once('error', fail);
      child.once('close', (code, signal) => done({ code, signal, ...said }));
    });
  }

  /** A program on a machine that is not in the cluster, but has the claims at the given paths, as pods would. */
  async runWithClaims(paths: Record<string, string>, command: readonly string[]): Promise<Exit> {
    const directory = mkdtempSync(join(this.directory, 'machine-'));
    mkdirSync(join(directory, 'root'));
    const mounts = Object.entries(paths).map(([path, source]) => `bind\t${source}\t${path}\n`);
    writeFileSync(join(directory, 'mounts'), mounts.join(''));
    copyFileSync('/etc/hosts', join(directory, 'hosts'));
    const space = ['unshare', '--mount', '--uts', '--pid', '--fork', '--kill-child'];
    return this.run([...space, 'bash', POD_SCRIPT, 'machine', directory, ROOT, 'true', ...command]);
  }

  /** Pods that are there, by the start of their names. */
  pods(start = ''): Pod[] {
    return this.store.list<PodSpec, PodStatus>('Pod', ({ metadata }) => metadata.name.startsWith(start));
  }

  kill(pod: Pod): Promise<void> {
    return this.kubelet.kill(pod);
  }

  /** Processes of pods, and of programs beside the cluster. */
  processes(): string[] {
    return withEnvironment(Object.entries(this.mark)[0]?.join('=') as string)
      .map((pid) => {
        try {
          return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
        } catch {
          return '';
        }
      })
      .filter((line) => line !== '');
  }

  /** @throws Error with what is there when it does not come within four minutes */
  async until(what: string, condition: () => boolean): Promise<void> {
    for (const end = Date.now() + WAIT_MS; !condition(); ) {
      if (Date.now() > end)
        throw new Error(`${what} has not come within ${WAIT_MS / 1000} s:\n${this.describe()}`);
      await sleep(20);
    }
  }

  /** Objects with their states, and what pods have said. */
  describe(): string {
    const pods = this.pods().map(
      (pod) => `${pod.metadata.name} ${JSON.stringify(pod.status)}\n${this.saidBy(pod)}`,
    );
    const jobs = this.store
      .list('Job')
      .map(({ metadata, status }) => `${metadata.name} ${JSON.stringify(status)}`);
    return [...jobs, ...pods, ...this.server.requests.slice(-20)].join('\n');
  }

  saidBy(pod: Pod): string {
    try {
      return this.kubelet.text(pod);
    } catch {
      return '';
    }
  }

  /** Keeps what the pod's container says, also when the pod is gone. */
  follow(pod: Pod): () => string {
    let said = '';
    void this.kubelet.follow(pod, (text) => (said += text), new AbortController().signal);
    return () => said;
  }

  async stop(): Promise<void> {
    this.stopped = true;
    this.api?.stop();
    await this.kubelet.stop();
    for (const [name, value] of Object.entries(this.mark)) endWithEnvironment(`${name}=${value}`);
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** What a change is for the controllers, once for all changes of a moment. */
  private look(): void {
    if (this.asked || this.stopped) return;
    this.asked = true;
    setImmediate(() => {
      this.asked = false;
      if (this.stopped) return;
      reconcileCustomResources(this.store);
      this.jobs.reconcile();
      this.kubelet.reconcile();
    });
  }

  private writeKubeconfig(): void {
    const name = 'test';
    const config = {
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': name,
      clusters: [
        { name, cluster: { server: this.server.url, 'certificate-authority': this.server.certificate } },
      ],
      users: [{ name, user: { token: this.server.token } }],
      contexts: [{ name, context: { cluster: name, user: name, namespace: 'team' } }],
    };
    writeFileSync(this.env['KUBECONFIG'] as string, yaml.dump(config), { mode: 0o600 });
  }
}

/** The image of all pods is this machine, in a directory that has Troupe as one of its packages. */
function imageIn(directory: string): string {
  const image = join(directory, 'image');
  const programs = join(image, 'node_modules', '.bin');
  mkdirSync(programs, { recursive: true });
  const program = `#!/bin/sh\nexec node '${join(ROOT, 'dist', 'cli.js')}' "$@"\n`;
  writeFileSync(join(programs, 'troupe'), program, { mode: 0o755 });
  return image;
}
