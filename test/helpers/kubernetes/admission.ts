// What the tests' API server refuses, and fills in, of an object that somebody makes: rules of the Job API, of JobSet's and of Kubeflow
// trainer's webhooks that manifests of a run can offend. Unknown fields are the compiler's business: manifests are typed.
import type { JobSpec } from 'kubernetes-types/batch/v1';
import type { PodTemplateSpec, ServiceSpec } from 'kubernetes-types/core/v1';
import type { JobSetSpec, RuntimeSpec, TrainJobSpec } from './custom_resources';
import { ApiError, type KubeObject, type ObjectStore } from './objects';

const LABEL = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;
/** Of a service, and of what gives its name to one. */
const DNS_1035 = /^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$/;

/** @throws ApiError 422 with all that is wrong */
export function admit(object: KubeObject, store: ObjectStore): void {
  const { kind, metadata } = object;
  const errors = LABEL.test(metadata.name) ? [] : [`metadata.name: ${metadata.name} is no DNS label`];
  if (kind === 'Secret') secret(object);
  if (kind === 'Service') errors.push(...service(object as KubeObject<ServiceSpec>));
  if (kind === 'Job') errors.push(...job((object as KubeObject<JobSpec>).spec, metadata.name));
  if (kind === 'JobSet') errors.push(...jobSet((object as KubeObject<JobSetSpec>).spec, metadata.name));
  if (kind === 'TrainingRuntime') errors.push(...runtime((object as KubeObject<RuntimeSpec>).spec));
  if (kind === 'TrainJob') errors.push(...trainJob(object as KubeObject<TrainJobSpec>, store));
  if (errors.length > 0)
    throw new ApiError(422, 'Invalid', `${kind} "${metadata.name}" is invalid: ${errors.join('; ')}`);
}

/** `stringData` is written, and never read again. */
function secret(object: KubeObject): void {
  const parts = object as KubeObject & { data?: Record<string, string>; stringData?: Record<string, string> };
  for (const [key, text] of Object.entries(parts.stringData ?? {}))
    parts.data = { ...parts.data, [key]: Buffer.from(text).toString('base64') };
  delete parts.stringData;
}

function service({ metadata, spec }: KubeObject<ServiceSpec>): string[] {
  const errors = DNS_1035.test(metadata.name) ? [] : [`metadata.name: ${metadata.name}: a DNS-1035 label`];
  if ((spec.ports ?? []).length === 0 && spec.clusterIP !== 'None') errors.push('spec.ports: Required value');
  return errors;
}

function job(spec: JobSpec, name: string): string[] {
  if (spec.completions === undefined && spec.parallelism === undefined)
    spec.completions = spec.parallelism = 1;
  spec.parallelism ??= 1;
  spec.completionMode ??= 'NonIndexed';
  spec.backoffLimit ??= 6;
  const errors = template(spec.template, 'spec.template');
  const { restartPolicy, containers = [] } = spec.template.spec ?? {};
  if (restartPolicy !== 'Never' && restartPolicy !== 'OnFailure')
    errors.push(`spec.template.spec.restartPolicy: ${restartPolicy}: expected Never or OnFailure`);
  if (spec.completionMode === 'Indexed') {
    if (spec.completions === undefined) errors.push('spec.completions: Required value when Indexed');
    const longest = `${name}-${(spec.completions ?? 1) - 1}`;
    if (longest.length > 63)
      errors.push(`metadata.name: ${longest} would be a hostname of more than 63 characters`);
  }
  if (spec.podFailurePolicy !== undefined && restartPolicy !== 'Never')
    errors.push('spec.podFailurePolicy: only with restartPolicy Never');
  for (const { onExitCodes, onPodConditions = [] } of spec.podFailurePolicy?.rules ?? []) {
    if ((onExitCodes === undefined) === (onPodConditions.length === 0))
      errors.push('spec.podFailurePolicy.rules: exactly one of onExitCodes and onPodConditions');
    const values = onExitCodes?.values ?? [1];
    if (values.some((value, i) => i > 0 && value <= (values[i - 1] as number)))
      errors.push(`spec.podFailurePolicy.rules.onExitCodes.values: ${values}: must be ordered`);
    if (onExitCodes?.operator === 'In' && values.includes(0))
      errors.push('spec.podFailurePolicy.rules.onExitCodes.values: must not be 0 for In');
    const container = onExitCodes?.containerName;
    if (container !== undefined && !containers.some((one) => one.name === container))
      errors.push(`spec.podFailurePolicy.rules.onExitCodes.containerName: there is no ${container}`);
  }
  return errors;
}

function template({ spec }: PodTemplateSpec, path: string): string[] {
  const errors: string[] = [];
  if (spec === undefined || spec.containers.length === 0) return [`${path}.spec.containers: Required value`];
  const volumes = (spec.volumes ?? []).map(({ name }) => name);
  for (const name of [...volumes, ...spec.containers.map((container) => container.name)])
    if (!LABEL.test(name)) errors.push(`${path}.spec: ${name} is no DNS label`);
  if (new Set(volumes).size < volumes.length) errors.push(`${path}.spec.volumes: the same name twice`);
  for (const { secret: of } of spec.volumes ?? [])
    if ((of?.defaultMode ?? 0) > 0o777) errors.push(`${path}.spec.volumes.secret.defaultMode: above 0777`);
  for (const { volumeMounts = [], image } of spec.containers) {
    if (!image) errors.push(`${path}.spec.containers.image: Required value`);
    const paths = volumeMounts.map(({ mountPath }) => mountPath);
    if (new Set(paths).size < paths.length) errors.push(`${path}: mountPath must be unique: ${paths}`);
    for (const { name } of volumeMounts)
      if (!volumes.includes(name)) errors.push(`${path}.spec.containers.volumeMounts: no volume ${name}`);
  }
  return errors;
}

function jobSet(spec: JobSetSpec, name: string): string[] {
  const names = spec.replicatedJobs.map((one) => one.name);
  const errors = (spec.successPolicy?.targetReplicatedJobs ?? [])
    .filter((target) => !names.includes(target))
    .map((target) => `invalid replicatedJob name '${target}' does not appear in .spec.ReplicatedJobs`);
  for (const one of spec.replicatedJobs) {
    one.replicas ??= 1;
    const { spec: jobSpec } = one.template;
    jobSpec.completionMode ??= 'Indexed';
    if (jobSpec.template.spec !== undefined) jobSpec.template.spec.restartPolicy ??= 'OnFailure';
    const longest = `${name}-${one.name}-${one.replicas - 1}`;
    for (const made of [longest, `${longest}-${(jobSpec.completions ?? 1) - 1}-abcde`])
      if (!DNS_1035.test(made)) errors.push(`spec.replicatedJobs: ${made}: a DNS-1035 label`);
    errors.push(...job(structuredClone(jobSpec), longest));
  }
  return errors;
}

function runtime(spec: RuntimeSpec): string[] {
  const errors: string[] = [];
  for (const one of spec.template.spec.replicatedJobs) {
    one.replicas ??= 1;
    const isTrainer =
      one.template.metadata?.labels?.['trainer.kubeflow.org/trainjob-ancestor-step'] === 'trainer';
    const { containers = [] } = one.template.spec.template.spec ?? {};
    if (isTrainer && one.replicas !== 1)
      errors.push('spec.template.spec.replicatedJobs.replicas: always must be 1');
    if (isTrainer && !containers.some(({ name }) => name === 'node'))
      errors.push('spec.template.spec.replicatedJobs: must have the container node');
  }
  return errors;
}

function trainJob({ metadata, spec }: KubeObject<TrainJobSpec>, store: ObjectStore): string[] {
  const { name, kind } = spec.runtimeRef;
  return store.find(kind, metadata.namespace, name) === null
    ? [
        `spec.runtimeRef: ${name} not found: specified trainingRuntime must be created before the TrainJob is created`,
      ]
    : [];
}
