// The Job controller of the tests' Kubernetes: makes pods of Jobs, counts how they end, and says when a Job has.
import { randomBytes } from 'node:crypto';
import type { JobSpec } from 'kubernetes-types/batch/v1';
import type { PodSpec, PodStatus } from 'kubernetes-types/core/v1';
import { ownedBy } from './custom_resources';
import { hasCondition, type KubeObject, type ObjectStore, setCondition } from './objects';

export type Pod = KubeObject<PodSpec, PodStatus>;

interface JobStatus {
  conditions?: { type: string; status: string }[];
  active?: number;
  succeeded?: number;
  failed?: number;
}
type Job = KubeObject<JobSpec, JobStatus>;

/** What the controller has counted of a Job: pods that are gone count as well. */
interface Count {
  seen: Set<string>;
  /** Indexes that are done; of a Job without indexes as many numbers. */
  done: Set<number>;
  failed: number;
  /** Restarts of containers, by pod. */
  restarts: Map<string, number>;
  /** No new pod before. */
  notBefore: number;
  givenUp: string | null;
}

const INDEX = 'batch.kubernetes.io/job-completion-index';

export class JobController {
  private readonly counts = new Map<string, Count>();

  /** `backoffMs`: before the first pod in place of one that failed, then twice as long each time; 10 s on a cluster. */
  constructor(
    private readonly store: ObjectStore,
    private readonly backoffMs: number,
    private readonly wake: (ms: number) => void,
  ) {
    // At once: a pod that has ended may be gone at the next look.
    store.subscribe(({ object }) => {
      if (object.kind === 'Pod') this.count(object as Pod);
    });
  }

  reconcile(): void {
    for (const job of this.store.list<JobSpec, JobStatus>('Job'))
      if (!hasCondition(job, 'Complete') && !hasCondition(job, 'Failed')) this.reconcileOne(job);
  }

  private reconcileOne(job: Job): void {
    const { spec } = job;
    const count = this.countOf(job);
    const pods = this.store.ownedBy<PodSpec, PodStatus>('Pod', job);
    // With a policy for failures a pod is replaced when it has ended, else as soon as it is told to.
    const active = pods.filter(
      (pod) =>
        !isEnded(pod) &&
        (pod.metadata.deletionTimestamp === undefined || spec.podFailurePolicy !== undefined),
    );
    const restarts = [...count.restarts.values()].reduce((sum, one) => sum + one, 0);
    if (count.failed + restarts > (spec.backoffLimit ?? 6)) count.givenUp ??= 'BackoffLimitExceeded';
    const completions = spec.completions ?? 1;
    const complete = count.done.size >= completions;
    this.store.update(job, (object) => {
      const status: JobStatus = {
        ...object.status,
        active: active.length,
        succeeded: count.done.size,
        failed: count.failed,
      };
      object.status = status;
      if (count.givenUp !== null) setCondition(status, 'Failed', count.givenUp, 'see its pods');
      else if (complete) setCondition(status, 'Complete', 'CompletionsReached', 'see its pods');
    });
    if (complete || count.givenUp !== null) {
      for (const pod of active) this.store.requestDeletion(pod, null);
      return;
    }
    const wait = count.notBefore - Date.now();
    if (wait > 0) {
      this.wake(wait);
      return;
    }
    const indexed = spec.completionMode === 'Indexed';
    const running = new Set(active.map((pod) => Number(pod.metadata.annotations?.[INDEX] ?? -1)));
    const open = Array.from({ length: completions }, (_, i) => i).filter((i) =>
      indexed ? !count.done.has(i) && !running.has(i) : i >= count.done.size + active.length,
    );
    for (const index of open.slice(0, Math.max(0, (spec.parallelism ?? 1) - active.length)))
      this.makePod(job, indexed ? index : null);
  }

  private makePod(job: Job, index: number | null): void {
    const { name, namespace, uid } = job.metadata;
    const { metadata, spec } = structuredClone(job.spec.template);
    const stem = index === null ? name : `${name}-${index}`;
    if (index !== null && spec !== undefined) {
      spec.hostname = stem;
      const fieldRef = { fieldPath: `metadata.annotations['${INDEX}']` };
      for (const container of spec.containers)
        container.env = [...(container.env ?? []), { name: 'JOB_COMPLETION_INDEX', valueFrom: { fieldRef } }];
    }
    const labels = {
      'batch.kubernetes.io/controller-uid': uid,
      'batch.kubernetes.io/job-name': name,
      'job-name': name,
    };
    const draft = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: {
        name: `${stem}-${randomBytes(3).toString('hex').slice(0, 5)}`,
        labels: { ...metadata?.labels, ...labels },
        annotations: { ...metadata?.annotations, ...(index === null ? {} : { [INDEX]: String(index) }) },
        ...ownedBy(job),
      },
      spec,
      status: { phase: 'Pending' },
    };
    this.store.add(this.store.draft(draft, namespace));
  }

  private count(pod: Pod): void {
    const { metadata, status } = pod;
    const owner = metadata.ownerReferences?.find(({ kind }) => kind === 'Job');
    const job = owner && this.store.find<JobSpec, JobStatus>('Job', metadata.namespace, owner.name);
    if (!job || job.metadata.uid !== owner.uid) return;
    const count = this.countOf(job);
    count.restarts.set(metadata.uid, status?.containerStatuses?.[0]?.restartCount ?? 0);
    if (!isEnded(pod) || count.seen.has(metadata.uid)) return;
    count.seen.add(metadata.uid);
    if (status?.phase === 'Succeeded') {
      count.done.add(Number(metadata.annotations?.[INDEX] ?? count.done.size));
      return;
    }
    const action = actionFor(job.spec, pod);
    if (action === 'FailJob') count.givenUp ??= 'PodFailurePolicy';
    if (action === 'Ignore') return;
    count.failed++;
    count.notBefore = Date.now() + this.backoffMs * 2 ** (count.failed - 1);
  }

  private countOf({ metadata: { uid } }: Job): Count {
    const found = this.counts.get(uid);
    if (found !== undefined) return found;
    const made = { seen: new Set<string>(), done: new Set<number>(), failed: 0, notBefore: 0 };
    const count: Count = { ...made, restarts: new Map(), givenUp: null };
    this.counts.set(uid, count);
    return count;
  }
}

export const isEnded = ({ status }: Pod): boolean =>
  status?.phase === 'Succeeded' || status?.phase === 'Failed';

/** The first rule of the policy for failures that fits. */
function actionFor({ podFailurePolicy }: JobSpec, { status }: Pod): string {
  const rule = (podFailurePolicy?.rules ?? []).find(({ onExitCodes, onPodConditions = [] }) => {
    const conditions = status?.conditions ?? [];
    if (onExitCodes === undefined)
      return onPodConditions.some(({ type, status: value = 'True' }) =>
        conditions.some((condition) => condition.type === type && condition.status === value),
      );
    const code = status?.containerStatuses?.find(({ name }) => name === (onExitCodes.containerName ?? name))
      ?.state?.terminated?.exitCode;
    if (code === undefined || code === 0) return false;
    return onExitCodes.values.includes(code) === (onExitCodes.operator === 'In');
  });
  return rule?.action ?? 'Count';
}
