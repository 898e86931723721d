// What is chosen of a run on Kubernetes.

export const KUBERNETES_KINDS = ['jobset', 'job', 'trainjob'] as const;
export type KubernetesKind = (typeof KUBERNETES_KINDS)[number];

/** claim:/path */
export const VOLUME = /^([a-z0-9][-.a-z0-9]*):(\/.*)$/;
