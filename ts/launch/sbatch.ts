// The batch script that brings a run to Slurm: the controller is the script.
import { join } from 'node:path';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { packageRoot } from '../install/package_root';
import { carriedEnvironment, shellWord } from './agent_command';

export interface SbatchOptions {
  /** 'train' or 'sft'. */
  program: string;
  /** The configuration file. */
  file: string;
  overrides: readonly string[];
  /** Further words for sbatch, such as --partition=a100. */
  options: readonly string[];
  /** Limit of the job, in Slurm's words; null: that of the partition. */
  time: string | null;
  /** Seconds before that limit at which the run is told to save. */
  notice: number;
  directory: string;
}

/** Set in the job: a run that the time limit stops asks to be started again. */
export const REQUEUE = 'TROUPE_REQUEUE';

/**
 * The time limit comes as SIGUSR2, so that it is not taken for an scancel, which sends SIGTERM: after the one the job goes back to the
 * queue, after the other it ends. (SIGUSR1 would start Node's debugger.)
 */
export function sbatchScript(config: ResolvedConfig | ResolvedSftConfig, o: SbatchOptions): string {
  const { trainer } = config;
  const onGpus = trainer.device !== 'cpu';
  const options = [
    `--job-name=${trainer.experiment_name}`,
    `--nodes=${trainer.nnodes}`,
    '--ntasks-per-node=1',
    ...(onGpus ? [`--gpus-per-node=${trainer.n_gpus_per_node}`] : []),
    ...(o.options.some((option) => /^--(exclusive|cpus-per-task)\b/.test(option)) ? [] : ['--exclusive']),
    ...(o.time === null ? [] : [`--time=${o.time}`]),
    `--signal=B:USR2@${o.notice}`,
    '--requeue',
    '--open-mode=append',
    `--output=${join(trainer.default_local_dir, 'slurm-%j.log')}`,
    ...o.options,
  ];
  const command = [
    process.execPath,
    join(packageRoot, 'dist', 'cli.js'),
    o.program,
    o.file,
    ...o.overrides,
    'trainer.launcher.type=slurm',
  ];
  return [
    '#!/bin/sh',
    ...options.map((option) => `#SBATCH ${option}`),
    ...carriedEnvironment().map(([name, value]) => `export ${name}=${shellWord(value)}`),
    `export ${REQUEUE}=1`,
    `cd ${shellWord(o.directory)} || exit`,
    '# In the place of this shell: signals of the scheduler are for the controller.',
    `exec ${command.map(shellWord).join(' ')}`,
    '',
  ].join('\n');
}
