// Objects of Kubernetes' API as the tests' API server keeps them: versions, who owns whom, what has happened to them.
import { randomUUID } from 'node:crypto';

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
}

export interface Metadata {
  name: string;
  namespace: string;
  uid: string;
  resourceVersion: string;
  creationTimestamp: string;
  deletionTimestamp?: string;
  deletionGracePeriodSeconds?: number;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: OwnerReference[];
}

export interface KubeObject<Spec = unknown, Status = unknown> {
  apiVersion: string;
  kind: string;
  metadata: Metadata;
  spec: Spec;
  status?: Status;
}

/** What is made into an object: the server adds the rest. */
export interface Draft {
  apiVersion: string;
  kind: string;
  metadata: Partial<Metadata> & { name: string };
  [part: string]: unknown;
}

export interface Change {
  type: 'ADDED' | 'MODIFIED' | 'DELETED';
  version: number;
  object: KubeObject;
}

/** An answer of the API that is not 2xx. */
export class ApiError extends Error {
  constructor(
    readonly code: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

const now = (): string => `${new Date().toISOString().slice(0, 19)}Z`;

export class ObjectStore {
  /** All that has happened, for those who begin to watch later. */
  readonly changes: Change[] = [];
  private readonly objects = new Map<string, KubeObject>();
  private readonly listeners = new Set<(change: Change) => void>();

  get version(): number {
    return this.changes.length;
  }

  /** Hears of each change before the one that makes it goes on. @returns what ends that */
  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The object as it would be made. */
  draft(draft: Draft, namespace: string): KubeObject {
    const { metadata, ...rest } = structuredClone(draft);
    return {
      spec: undefined,
      ...rest,
      metadata: {
        ...metadata,
        namespace,
        uid: randomUUID(),
        resourceVersion: String(this.version),
        creationTimestamp: now(),
      },
    };
  }

  add<Spec, Status>(object: KubeObject<Spec, Status>): KubeObject<Spec, Status> {
    const { kind, metadata } = object;
    if (this.find(kind, metadata.namespace, metadata.name) !== null)
      throw new ApiError(409, 'AlreadyExists', `${kind} "${metadata.name}" already exists`);
    return this.changed('ADDED', object as KubeObject) as KubeObject<Spec, Status>;
  }

  find<Spec = unknown, Status = unknown>(
    kind: string,
    namespace: string,
    name: string,
  ): KubeObject<Spec, Status> | null {
    return (this.objects.get(keyOf(kind, namespace, name)) ?? null) as KubeObject<Spec, Status> | null;
  }

  list<Spec = unknown, Status = unknown>(
    kind: string,
    chosen: (object: KubeObject) => boolean = () => true,
  ): KubeObject<Spec, Status>[] {
    return [...this.objects.values()].filter(
      (object) => object.kind === kind && chosen(object),
    ) as KubeObject<Spec, Status>[];
  }

  /** What `owner` has made, of one kind. */
  ownedBy<Spec = unknown, Status = unknown>(kind: string, owner: KubeObject): KubeObject<Spec, Status>[] {
    return this.list(kind, ({ metadata }) =>
      (metadata.ownerReferences ?? []).some(({ uid }) => uid === owner.metadata.uid),
    );
  }

  /** Nothing happens when the object is gone, or is then as it was. @returns the object as it is then */
  update<Spec, Status>(
    { kind, metadata }: KubeObject<Spec, Status>,
    change: (object: KubeObject<Spec, Status>) => void,
  ): KubeObject<Spec, Status> | null {
    const found = this.find<Spec, Status>(kind, metadata.namespace, metadata.name);
    if (found === null || found.metadata.uid !== metadata.uid) return null;
    const next = structuredClone(found);
    change(next);
    if (JSON.stringify(next) === JSON.stringify(found)) return found;
    return this.changed('MODIFIED', next as KubeObject) as KubeObject<Spec, Status>;
  }

  /** A pod goes when its kubelet has ended it, all else at once. */
  requestDeletion(object: KubeObject, graceSeconds: number | null): void {
    const ofPod = (object.spec as { terminationGracePeriodSeconds?: number } | undefined)
      ?.terminationGracePeriodSeconds;
    const grace = graceSeconds ?? ofPod ?? 30;
    if (object.kind !== 'Pod') {
      this.remove(object);
      return;
    }
    this.update(object, ({ metadata }) => {
      metadata.deletionTimestamp ??= now();
      metadata.deletionGracePeriodSeconds = Math.min(grace, metadata.deletionGracePeriodSeconds ?? grace);
    });
  }

  /** And then what it has made. */
  remove(object: KubeObject): void {
    const { kind, metadata } = object;
    const found = this.find(kind, metadata.namespace, metadata.name);
    if (found === null || found.metadata.uid !== metadata.uid) return;
    this.changed('DELETED', structuredClone(found));
    for (const other of [...this.objects.values()])
      if (other.metadata.ownerReferences?.some(({ uid }) => uid === metadata.uid))
        this.requestDeletion(other, null);
  }

  private changed(type: Change['type'], object: KubeObject): KubeObject {
    const { kind, metadata } = object;
    const version = this.version + 1;
    metadata.resourceVersion = String(version);
    const key = keyOf(kind, metadata.namespace, metadata.name);
    if (type === 'DELETED') this.objects.delete(key);
    else this.objects.set(key, object);
    const change = { type, version, object };
    this.changes.push(change);
    for (const listener of [...this.listeners]) listener(change);
    return object;
  }
}

const keyOf = (kind: string, namespace: string, name: string): string => `${kind}/${namespace}/${name}`;

/** a=b,c!=d,e in (f,g),!h,i: a selector of labels as kubectl sends it. @throws ApiError for one that is none */
export function labelSelector(text: string): (labels: Record<string, string>) => boolean {
  const tests = (text.match(/[^,(]+(\([^)]*\))?/g) ?? []).map((part) => {
    const set = /^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$/.exec(part);
    if (set !== null) {
      const values = (set[3] as string).split(',').map((value) => value.trim());
      return (labels: Record<string, string>) =>
        values.includes(labels[set[1] as string] ?? '') === (set[2] === 'in');
    }
    const equal = /^\s*([^\s!=]+)\s*(!=|==?)\s*(\S*)\s*$/.exec(part);
    if (equal !== null)
      return (labels: Record<string, string>) =>
        (labels[equal[1] as string] === equal[3]) === (equal[2] !== '!=');
    const there = /^\s*(!?)([^\s!=]+)\s*$/.exec(part);
    if (there === null) throw new ApiError(400, 'BadRequest', `unable to parse the selector ${text}`);
    return (labels: Record<string, string>) =>
      (labels[there[2] as string] === undefined) === (there[1] === '!');
  });
  return (labels) => tests.every((matches) => matches(labels));
}

/** Adds a condition, or puts it right; `changed` at this second. */
export function setCondition(
  status: { conditions?: { type: string; status: string }[] },
  type: string,
  reason: string,
  message: string,
): void {
  status.conditions = [
    ...(status.conditions ?? []).filter((condition) => condition.type !== type),
    { type, status: 'True', ...{ reason, message, lastTransitionTime: now() } },
  ];
}

/** Whether it has the condition. */
export const hasCondition = ({ status }: KubeObject, type: string): boolean =>
  ((status as { conditions?: { type: string; status: string }[] } | undefined)?.conditions ?? []).some(
    (condition) => condition.type === type && condition.status === 'True',
  );
