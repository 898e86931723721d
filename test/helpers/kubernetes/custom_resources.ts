// What JobSet and Kubeflow's trainer add to the tests' Kubernetes: controllers that make Jobs of a JobSet, and a JobSet of a TrainJob.
import type { JobSpec } from 'kubernetes-types/batch/v1';
import type { PodTemplateSpec } from 'kubernetes-types/core/v1';
import { hasCondition, type KubeObject, type Metadata, type ObjectStore, setCondition } from './objects';

interface JobTemplate {
  metadata?: Partial<Metadata>;
  spec: JobSpec;
}
interface ReplicatedJob {
  name: string;
  replicas?: number;
  template: JobTemplate;
}
export interface JobSetSpec {
  replicatedJobs: ReplicatedJob[];
  successPolicy?: { operator: 'All' | 'Any'; targetReplicatedJobs?: string[] };
  failurePolicy?: { maxRestarts?: number };
}
export interface RuntimeSpec {
  mlPolicy: { numNodes: number };
  template: { spec: { replicatedJobs: ReplicatedJob[] } };
}
export interface TrainJobSpec {
  runtimeRef: { kind: string; name: string };
  trainer?: { numNodes?: number; numProcPerNode?: number };
}

interface Status {
  conditions?: { type: string; status: string }[];
}

/** Reference to what makes an object. */
export const ownedBy = ({ apiVersion, kind, metadata }: KubeObject): Partial<Metadata> => ({
  ownerReferences: [{ apiVersion, kind, name: metadata.name, uid: metadata.uid }],
});

const ended = (object: KubeObject): boolean =>
  ['Complete', 'Completed', 'Failed'].some((type) => hasCondition(object, type));

/** One look at all of them. */
export function reconcileCustomResources(store: ObjectStore): void {
  for (const set of store.list<JobSetSpec, Status>('JobSet')) if (!ended(set)) reconcileJobSet(store, set);
  for (const job of store.list<TrainJobSpec, Status>('TrainJob'))
    if (!ended(job)) reconcileTrainJob(store, job);
}

function reconcileJobSet(store: ObjectStore, set: KubeObject<JobSetSpec, Status>): void {
  const { metadata, spec } = set;
  const { name, namespace } = metadata;
  const jobs = store.ownedBy<JobSpec, Status>('Job', set);
  if (jobs.length === 0) {
    makeJobs(store, set);
    return;
  }
  const finish = (type: 'Completed' | 'Failed', message: string): void => {
    store.update(set, (object) => {
      object.status ??= {};
      setCondition(object.status, type, type === 'Failed' ? 'FailedJobs' : 'AllJobsCompleted', message);
    });
    for (const job of jobs) if (!ended(job)) store.requestDeletion(job, null);
  };
  const failed = jobs.find((job) => hasCondition(job, 'Failed'));
  // More of a failure policy is not needed by any manifest: with restarts left the whole set would be made anew.
  if (failed !== undefined) {
    if ((spec.failurePolicy?.maxRestarts ?? 0) > 0) throw new Error('maxRestarts above 0 is not played');
    finish('Failed', `jobset failed due to job ${failed.metadata.name}`);
    return;
  }
  const targets = spec.successPolicy?.targetReplicatedJobs ?? spec.replicatedJobs.map((one) => one.name);
  const done = spec.replicatedJobs
    .filter((one) => targets.includes(one.name))
    .flatMap((one) => jobNames(name, one))
    .map((job) => store.find<JobSpec, Status>('Job', namespace, job))
    .map((job) => job !== null && hasCondition(job, 'Complete'));
  if (spec.successPolicy?.operator === 'Any' ? done.includes(true) : !done.includes(false))
    finish('Completed', 'jobset completed successfully');
}

const jobNames = (set: string, { name, replicas = 1 }: ReplicatedJob): string[] =>
  Array.from({ length: replicas }, (_, i) => `${set}-${name}-${i}`);

/** Names are set-job-index; pods find each other by the service that is called as the set. */
function makeJobs(store: ObjectStore, set: KubeObject<JobSetSpec>): void {
  const { name, namespace } = set.metadata;
  const label = { 'jobset.sigs.k8s.io/jobset-name': name };
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, labels: label, ...ownedBy(set) },
    spec: { clusterIP: 'None', selector: label, publishNotReadyAddresses: true },
  };
  store.add(store.draft(service, namespace));
  for (const one of set.spec.replicatedJobs)
    for (const job of jobNames(name, one)) {
      const spec = structuredClone(one.template.spec);
      const labels = { ...label, 'jobset.sigs.k8s.io/replicatedjob-name': one.name };
      spec.template.metadata = {
        ...spec.template.metadata,
        labels: { ...spec.template.metadata?.labels, ...labels },
      };
      if (spec.template.spec !== undefined) spec.template.spec.subdomain = name;
      if (spec.completions === undefined && spec.parallelism === undefined)
        spec.completions = spec.parallelism = 1;
      const { metadata } = one.template;
      const draft = {
        apiVersion: 'batch/v1',
        kind: 'Job',
        metadata: { name: job, labels: { ...metadata?.labels, ...labels }, ...ownedBy(set) },
        spec,
      };
      store.add(store.draft(draft, namespace));
    }
}

/** The torch policy: each node is told how many there are, which one it is, and where the first one is. */
function reconcileTrainJob(store: ObjectStore, job: KubeObject<TrainJobSpec, Status>): void {
  const { name, namespace } = job.metadata;
  const set = store.find<JobSetSpec, Status>('JobSet', namespace, name);
  if (set !== null) {
    for (const [of, type] of [
      ['Completed', 'Complete'],
      ['Failed', 'Failed'],
    ] as const)
      if (hasCondition(set, of))
        store.update(job, (object) => {
          object.status ??= {};
          setCondition(object.status, type, 'JobsCompleted', `of the JobSet: ${of}`);
        });
    return;
  }
  const { runtimeRef, trainer } = job.spec;
  const runtime = store.find<RuntimeSpec>(runtimeRef.kind, namespace, runtimeRef.name);
  if (runtime === null) return;
  const spec: JobSetSpec = structuredClone(runtime.spec.template.spec);
  const nodes = trainer?.numNodes ?? runtime.spec.mlPolicy.numNodes;
  const [node] = spec.replicatedJobs as [ReplicatedJob];
  node.template.spec.completions = node.template.spec.parallelism = nodes;
  node.template.spec.completionMode ??= 'Indexed';
  addEnvironment(node.template.spec.template, {
    PET_NNODES: String(nodes),
    PET_NPROC_PER_NODE: String(trainer?.numProcPerNode ?? 'auto'),
    PET_MASTER_ADDR: `${name}-node-0-0.${name}`,
    PET_MASTER_PORT: '29500',
  });
  const draft = {
    apiVersion: 'jobset.x-k8s.io/v1alpha2',
    kind: 'JobSet',
    metadata: { name, ...ownedBy(job) },
    spec,
  };
  store.add(store.draft(draft, namespace));
}

const INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

function addEnvironment({ spec }: PodTemplateSpec, values: Record<string, string>): void {
  const container = spec?.containers.find(({ name }) => name === 'node');
  if (container === undefined) return;
  container.env = [
    ...(container.env ?? []),
    ...Object.entries(values).map(([name, value]) => ({ name, value })),
    { name: 'PET_NODE_RANK', valueFrom: { fieldRef: { fieldPath: INDEX } } },
  ];
}
