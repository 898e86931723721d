// The kubelet of the tests' Kubernetes, of all nodes: plays pods by processes of this machine and says how they fare. Also the name server of
// the cluster: services without an address of their own, by the pods that they choose.
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { ContainerState, PodSpec, PodStatus, ServiceSpec } from 'kubernetes-types/core/v1';
import type { PodLogs } from './api_server';
import { isEnded, type Pod } from './jobs';
import { ApiError, type KubeObject, type ObjectStore } from './objects';
import { PodNetwork } from './pod_network';
import { PodProcess, type PodSurroundings } from './pod_process';

export interface KubeletOptions extends Pick<PodSurroundings, 'claims' | 'env' | 'workingDirectory'> {
  directory: string;
  /** Before the second start of a container that fails, then twice as long each time; the first one is at once. 10 s on a cluster. */
  backoffMs: number;
}

interface Played {
  process: PodProcess;
  ip: string;
  /** The container has been told to end. */
  ending: boolean;
  restarts: number;
  /** Ended for good: with this exit code. */
  code: number | null;
  remove(): void;
}

const now = (): string => `${new Date().toISOString().slice(0, 19)}Z`;

export class Kubelet implements PodLogs {
  private readonly played = new Map<string, Played>();
  private readonly network = new PodNetwork();

  constructor(
    private readonly store: ObjectStore,
    private readonly options: KubeletOptions,
  ) {}

  reconcile(): void {
    const pods = this.store.list<PodSpec, PodStatus>('Pod');
    for (const pod of pods) {
      if (!this.played.has(pod.metadata.uid) && !isEnded(pod)) this.start(pod);
      const played = this.played.get(pod.metadata.uid);
      if (pod.metadata.deletionTimestamp === undefined) continue;
      if (played === undefined || played.code !== null) this.forget(pod);
      else if (!played.ending || pod.metadata.deletionGracePeriodSeconds === 0) {
        played.ending = true;
        void played.process.end(1000 * (pod.metadata.deletionGracePeriodSeconds ?? 30));
      }
    }
    for (const [uid, played] of this.played)
      if (!pods.some(({ metadata }) => metadata.uid === uid) && played.code !== null) this.dismantle(uid);
    this.tellNames();
  }

  text(pod: KubeObject): string {
    const played = this.played.get(pod.metadata.uid);
    if (played !== undefined) return played.process.said;
    throw new ApiError(400, 'BadRequest', `container in pod "${pod.metadata.name}" is waiting to start`);
  }

  async follow(pod: KubeObject, say: (text: string) => void, signal: AbortSignal): Promise<void> {
    const played = this.played.get(pod.metadata.uid) as Played;
    say(played.process.said);
    const { restarts } = played;
    const end = played.process.listen(say);
    while (!signal.aborted && played.code === null && played.restarts === restarts)
      await new Promise((done) => setTimeout(done, 20));
    end();
  }

  /** As the kernel does that has no memory left: all processes of a pod's container at once. */
  async kill({ metadata }: Pod): Promise<void> {
    await this.played.get(metadata.uid)?.process.signal('SIGKILL');
  }

  async stop(): Promise<void> {
    for (const { process } of this.played.values()) await process.signal('SIGKILL');
    for (const uid of [...this.played.keys()]) this.dismantle(uid);
    this.network.remove();
  }

  private start(pod: Pod): void {
    const { metadata } = pod;
    const directory = join(this.options.directory, metadata.uid);
    const address = this.network.add();
    mkdirSync(directory);
    const process = new PodProcess(pod, {
      ...this.options,
      directory,
      address,
      secret: (name) =>
        (this.store.find('Secret', metadata.namespace, name) as { data?: Record<string, string> } | null)
          ?.data ?? null,
    });
    const obstacle = process.prepare();
    if (obstacle !== null) {
      address.remove();
      rmSync(directory, { recursive: true });
      this.tell(pod, 'Pending', 0, { waiting: { reason: 'ContainerCreating', message: obstacle } }, '');
      return;
    }
    const remove = (): void => {
      address.remove();
      rmSync(directory, { recursive: true, force: true });
    };
    const played = { process, ip: address.ip, ending: false, restarts: 0, code: null, remove };
    this.played.set(metadata.uid, played);
    this.tell(pod, 'Pending', 0, { waiting: { reason: 'ContainerCreating' } }, address.ip);
    this.tellNames();
    void this.play(pod, played);
  }

  /** From the first start of its container to the end of the pod. */
  private async play(pod: Pod, played: Played): Promise<void> {
    const { restartPolicy } = pod.spec;
    let code = 143;
    while (!played.ending) {
      this.tell(pod, 'Running', played.restarts, { running: { startedAt: now() } }, played.ip);
      code = await played.process.run();
      const again = restartPolicy === 'Always' || (restartPolicy === 'OnFailure' && code !== 0);
      if (!again) break;
      const wait = played.restarts === 0 ? 0 : this.options.backoffMs * 2 ** (played.restarts - 1);
      played.restarts++;
      if (wait > 0)
        this.tell(pod, 'Running', played.restarts, { waiting: { reason: 'CrashLoopBackOff' } }, played.ip);
      for (const end = Date.now() + wait; Date.now() < end && !played.ending; )
        await new Promise((done) => setTimeout(done, 20));
    }
    played.code = code;
    const reason = code === 0 ? 'Completed' : code === 137 ? 'OOMKilled' : 'Error';
    const phase = code === 0 ? 'Succeeded' : 'Failed';
    this.tell(
      pod,
      phase,
      played.restarts,
      { terminated: { exitCode: code, reason, finishedAt: now() } },
      played.ip,
    );
    this.reconcile();
  }

  /** A pod that was told to go, and has. */
  private forget(pod: Pod): void {
    this.dismantle(pod.metadata.uid);
    this.store.remove(pod);
  }

  private dismantle(uid: string): void {
    this.played.get(uid)?.remove();
    this.played.delete(uid);
  }

  private tell(pod: Pod, phase: string, restartCount: number, state: ContainerState, podIP: string): void {
    const { name, image = '' } = pod.spec.containers[0] ?? { name: '' };
    const ready = state.running !== undefined;
    this.store.update(pod, (object) => {
      object.status = {
        ...object.status,
        phase,
        podIP,
        conditions: [{ type: 'Ready', status: ready ? 'True' : 'False' }],
        containerStatuses: [{ name, image, imageID: '', ready, restartCount, state }],
      };
    });
  }

  /** Names that a pod can ask for: its own, those of services, and host name and service of each pod of one. */
  private tellNames(): void {
    const pods = this.store
      .list<PodSpec, PodStatus>('Pod')
      .filter((pod) => this.played.has(pod.metadata.uid) && !isEnded(pod));
    for (const pod of pods) {
      const { namespace, uid } = pod.metadata;
      const lines = ['127.0.0.1 localhost', `${pod.status?.podIP} ${pod.spec.hostname ?? pod.metadata.name}`];
      for (const { metadata, spec } of this.store.list<ServiceSpec>('Service'))
        for (const other of pods) {
          const { labels = {}, namespace: of } = other.metadata;
          const chosen = Object.entries(spec.selector ?? {}).every(([key, value]) => labels[key] === value);
          const isReady = other.status?.containerStatuses?.[0]?.ready ?? false;
          if (!chosen || of !== metadata.namespace || of !== namespace) continue;
          if (!isReady && !spec.publishNotReadyAddresses) continue;
          const { hostname, subdomain } = other.spec;
          const names =
            subdomain === metadata.name && hostname
              ? [`${hostname}.${subdomain}`, metadata.name]
              : [metadata.name];
          const all = names.flatMap((name) => [name, `${name}.${of}.svc.cluster.local`]);
          lines.push(`${other.status?.podIP} ${all.join(' ')}`);
        }
      this.played.get(uid)?.process.setHosts(`${lines.join('\n')}\n`);
    }
  }
}
