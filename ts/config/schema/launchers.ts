/** What starts the processes of a run on its hosts. */
export const LAUNCHERS = ['local', 'slurm', 'ray', 'ssh', 'env', 'external'] as const;
export type LauncherName = (typeof LAUNCHERS)[number];
