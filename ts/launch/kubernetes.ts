// Manifests that bring a run to Kubernetes: a controller, and an agent on each host that dials its service with a token from a Secret. At run
// time nothing of the cluster's API is used.
import { randomBytes } from 'node:crypto';
import yaml from 'js-yaml';
import type { Job, JobSpec } from 'kubernetes-types/batch/v1';
import type { Container, PodSpec, PodTemplateSpec, Secret, Service, Volume } from 'kubernetes-types/core/v1';
import type { ObjectMeta } from 'kubernetes-types/meta/v1';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { workersPerMachine } from '../config/derived/pools';
import { type KubernetesKind, VOLUME } from './kubernetes_options';

type Config = ResolvedConfig | ResolvedSftConfig;

export interface KubernetesOptions {
  kind: KubernetesKind;
  /** Of all objects: a DNS label. */
  name: string;
  namespace: string | null;
  image: string;
  /** claim:path of volumes that all pods see: the configuration, the data, the run directory. */
  volumes: readonly string[];
  program: 'train' | 'sft';
  /** As the pods see it. */
  file: string;
  overrides: readonly string[];
  /** Seconds that a pod has between SIGTERM and SIGKILL: more than a phase and a save take. */
  grace: number;
}

/** A JobSet (sigs.k8s.io/jobset), as far as it is used here. */
interface JobSet {
  apiVersion: 'jobset.x-k8s.io/v1alpha2';
  kind: 'JobSet';
  metadata: ObjectMeta;
  spec: {
    network: { enableDNSHostnames: boolean };
    successPolicy: { operator: 'All' | 'Any'; targetReplicatedJobs: string[] };
    failurePolicy: {
      maxRestarts: number;
      rules?: {
        name: string;
        action: 'RestartJob' | 'RestartJobSet' | 'FailJobSet';
        targetReplicatedJobs: string[];
      }[];
    };
    replicatedJobs: { name: string; replicas: number; template: { spec: JobSpec } }[];
  };
}

/** A runtime of Kubeflow's trainer (v2) and a job that uses it, as far as they are used here. */
interface TrainingRuntime {
  apiVersion: 'trainer.kubeflow.org/v1alpha1';
  kind: 'TrainingRuntime';
  metadata: ObjectMeta;
  spec: {
    mlPolicy: { numNodes: number; torch: Record<string, never> };
    template: {
      spec: { replicatedJobs: { name: string; template: { metadata: ObjectMeta; spec: JobSpec } }[] };
    };
  };
}
interface TrainJob {
  apiVersion: 'trainer.kubeflow.org/v1alpha1';
  kind: 'TrainJob';
  metadata: ObjectMeta;
  spec: {
    runtimeRef: { apiGroup: string; kind: string; name: string };
    trainer: { numNodes: number; numProcPerNode: number };
  };
}

export type Manifest = Secret | Service | Job | JobSet | TrainingRuntime | TrainJob;

const PORTS = [29400, 29463] as const;
const TOKEN_DIRECTORY = '/var/run/troupe';
const TOKEN = 'token';
/**
 * In the image the package is installed globally, or in the working directory. Not npx: it would take the SIGTERM that a pod gets for
 * itself, and Troupe would not hear of it.
 */
const COMMAND = ['sh', '-c', 'PATH="$PWD/node_modules/.bin:$PATH"; exec troupe "$@"', 'troupe'];
/** What the container is called; Kubeflow fills in one of this name. */
const CONTAINER = { pod: 'troupe', node: 'node' } as const;
const ROLE = 'troupe/role';
const RUN = 'troupe/run';

export function manifestText(manifests: readonly Manifest[]): string {
  return manifests.map((manifest) => `---\n${yaml.dump(manifest, { noRefs: true })}`).join('');
}

/** To be created in this order. Each call makes a new token. */
export function manifests(config: Config, options: KubernetesOptions): Manifest[] {
  if (options.kind === 'trainjob') return trainJob(config, options);
  return [
    secret(options),
    ...(options.kind === 'jobset' ? [jobSet(config, options)] : jobs(config, options)),
  ];
}

function metadata({ name, namespace }: KubernetesOptions, suffix = ''): ObjectMeta {
  return { name: `${name}${suffix}`, ...(namespace === null ? {} : { namespace }), labels: { [RUN]: name } };
}

const secret = (options: KubernetesOptions): Secret => ({
  apiVersion: 'v1',
  kind: 'Secret',
  metadata: metadata(options, '-token'),
  stringData: { [TOKEN]: randomBytes(32).toString('hex') },
});

/** JobSet names pods set-job-index-pod, and its service as itself. */
function jobSet(config: Config, options: KubernetesOptions): JobSet {
  const address = `${options.name}-controller-0-0.${options.name}:${PORTS[0]}`;
  return {
    apiVersion: 'jobset.x-k8s.io/v1alpha2',
    kind: 'JobSet',
    metadata: metadata(options),
    spec: {
      network: { enableDNSHostnames: true },
      successPolicy: { operator: 'All', targetReplicatedJobs: ['controller'] },
      // A host that is lost comes back by itself; a run that has given up does not.
      failurePolicy: { maxRestarts: 0 },
      replicatedJobs: [
        { name: 'controller', replicas: 1, template: { spec: controllerJob(config, options) } },
        { name: 'worker', replicas: 1, template: { spec: workerJob(config, options, address) } },
      ],
    },
  };
}

/** Without JobSet: two jobs, and a service that leads to the controller. */
function jobs(config: Config, options: KubernetesOptions): (Service | Job)[] {
  const service: Service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: metadata(options),
    spec: {
      clusterIP: 'None',
      // The agents may look for it before it is ready to say so.
      publishNotReadyAddresses: true,
      selector: { [RUN]: options.name, [ROLE]: 'controller' },
      ports: [{ name: 'agents', port: PORTS[0] }],
    },
  };
  const job = (role: string, spec: JobSpec): Job => ({
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: metadata(options, `-${role}`),
    spec,
  });
  return [
    service,
    job('controller', controllerJob(config, options)),
    job('worker', workerJob(config, options, `${options.name}:${PORTS[0]}`)),
  ];
}

function controllerJob(config: Config, options: KubernetesOptions): JobSpec {
  const args = [
    ...COMMAND,
    options.program,
    options.file,
    ...options.overrides,
    'trainer.launcher.type=external',
    `trainer.launcher.ports=${PORTS[0]}-${PORTS[1]}`,
    `trainer.launcher.token_file=${TOKEN_DIRECTORY}/${TOKEN}`,
  ];
  return {
    ...afterFailure(CONTAINER.pod),
    template: pod(config, options, 'controller', args, { restartPolicy: 'Never' }),
  };
}

/** An exit code that says that it would fail again; and what the cluster did is not the run's fault. */
function afterFailure(containerName: string): Pick<JobSpec, 'backoffLimit' | 'podFailurePolicy'> {
  return {
    backoffLimit: 10,
    podFailurePolicy: {
      rules: [
        { action: 'FailJob', onExitCodes: { containerName, operator: 'In', values: [2, 3] } },
        { action: 'Ignore', onPodConditions: [{ type: 'DisruptionTarget', status: 'True' }] },
      ],
    },
  };
}

function workerJob(config: Config, options: KubernetesOptions, controller: string): JobSpec {
  const { nnodes } = config.trainer;
  const { spares } = config.trainer.fault_tolerance;
  const hosts = nnodes + spares;
  const args = [
    ...COMMAND,
    'host-agent',
    '--controller',
    controller,
    '--token-file',
    `${TOKEN_DIRECTORY}/${TOKEN}`,
  ];
  return {
    completionMode: 'Indexed',
    completions: hosts,
    parallelism: hosts,
    backoffLimit: 1000,
    // In place, on the same host: it dials again.
    template: pod(config, options, 'worker', args, { restartPolicy: 'OnFailure' }),
  };
}

function pod(
  config: Config,
  options: KubernetesOptions,
  role: string,
  command: string[],
  spec: Pick<PodSpec, 'restartPolicy'>,
): PodTemplateSpec {
  const withGpus = role !== 'controller' && config.trainer.device !== 'cpu';
  const container: Container = {
    name: role === 'node' ? CONTAINER.node : CONTAINER.pod,
    image: options.image,
    command,
    ...(withGpus ? { resources: { limits: { 'nvidia.com/gpu': String(workersPerMachine(config)) } } } : {}),
    volumeMounts: [
      ...claims(options).map(({ name, path }) => ({ name, mountPath: path })),
      { name: 'shm', mountPath: '/dev/shm' },
      ...(role === 'node' ? [] : [{ name: TOKEN, mountPath: TOKEN_DIRECTORY, readOnly: true }]),
    ],
  };
  const volumes: Volume[] = [
    ...claims(options).map(({ name, claim }) => ({ name, persistentVolumeClaim: { claimName: claim } })),
    { name: 'shm', emptyDir: { medium: 'Memory' } },
    ...(role === 'node'
      ? []
      : [{ name: TOKEN, secret: { secretName: `${options.name}-token`, defaultMode: 0o400 } }]),
  ];
  return {
    metadata: { labels: { [RUN]: options.name, [ROLE]: role } },
    spec: {
      ...spec,
      // Then the first process of the pod is one that takes in orphans, which Node does not.
      shareProcessNamespace: true,
      terminationGracePeriodSeconds: options.grace,
      containers: [container],
      volumes,
    },
  };
}

/** Kubeflow: the same command on every node, placed by PET_NODE_RANK; they meet in the run directory. */
function trainJob(config: Config, options: KubernetesOptions): [TrainingRuntime, TrainJob] {
  const { nnodes } = config.trainer;
  const args = [...COMMAND, options.program, options.file, ...options.overrides, 'trainer.launcher.type=env'];
  const template = pod(config, options, 'node', args, { restartPolicy: 'Never' });
  return [
    {
      apiVersion: 'trainer.kubeflow.org/v1alpha1',
      kind: 'TrainingRuntime',
      metadata: metadata(options),
      spec: {
        mlPolicy: { numNodes: nnodes, torch: {} },
        template: {
          spec: {
            replicatedJobs: [
              {
                name: 'node',
                template: {
                  metadata: { labels: { 'trainer.kubeflow.org/trainjob-ancestor-step': 'trainer' } },
                  spec: { ...afterFailure(CONTAINER.node), template },
                },
              },
            ],
          },
        },
      },
    },
    {
      apiVersion: 'trainer.kubeflow.org/v1alpha1',
      kind: 'TrainJob',
      metadata: metadata(options),
      spec: {
        runtimeRef: { apiGroup: 'trainer.kubeflow.org', kind: 'TrainingRuntime', name: options.name },
        // The runtime's own setting of processes per node is gone since 2.2; this one is in all versions.
        trainer: { numNodes: nnodes, numProcPerNode: 1 },
      },
    },
  ];
}

/** @throws RangeError for one that is not claim:/path */
function claims({ volumes }: KubernetesOptions): { name: string; claim: string; path: string }[] {
  return volumes.map((volume, i) => {
    const match = VOLUME.exec(volume);
    if (match === null) throw new RangeError(`expected claim:/path, got ${volume}`);
    return { name: `volume-${i}`, claim: match[1] as string, path: match[2] as string };
  });
}
