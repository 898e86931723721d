// The batch script that brings a run to Slurm: the controller is the script.
import { join } from 'node:path';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { workersPerMachine } from '../config/derived/pools';
import { ConfigError } from '../errors';
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
 * queue, after the other it ends. (SIGUSR1 would start Node's debugger.) A run that would begin again never goes back to the queue.
 * @throws ConfigError for what an #SBATCH line cannot say, and for a run that is to be requeued but would begin again
 */
export function sbatchScript(config: ResolvedConfig | ResolvedSftConfig, o: SbatchOptions): string {
  const { trainer } = config;
  const onGpus = trainer.device !== 'cpu';
  const requeues = trainer.resume_mode === 'auto';
  if (!requeues && o.options.includes('--requeue'))
    throw new ConfigError(
      `trainer.resume_mode: expected auto with the option --requeue of sbatch, got ${trainer.resume_mode}, with which a job that went back to the queue would begin again`,
      'trainer.resume_mode',
    );
  const options = [
    `--job-name=${sbatchValue('trainer.experiment_name', trainer.experiment_name)}`,
    `--nodes=${trainer.nnodes}`,
    '--ntasks-per-node=1',
    ...(onGpus ? [`--gpus-per-node=${workersPerMachine(config)}`] : []),
    ...(o.options.some((option) => /^--(exclusive|cpus-per-task)\b/.test(option)) ? [] : ['--exclusive']),
    ...(o.time === null ? [] : [`--time=${o.time}`]),
    `--signal=B:USR2@${o.notice}`,
    requeues ? '--requeue' : '--no-requeue',
    '--open-mode=append',
    `--output=${logFile(trainer.default_local_dir)}`,
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
    ...(requeues ? [`export ${REQUEUE}=1`] : []),
    `cd ${shellWord(o.directory)} || exit`,
    '# In the place of this shell: signals of the scheduler are for the controller.',
    `exec ${command.map(shellWord).join(' ')}`,
    '',
  ].join('\n');
}

/** `text`, of this key of the configuration, in a word of an #SBATCH line: there are quotes and backslashes in them as in a shell, but no $. */
function sbatchValue(key: string, text: string): string {
  if (/\p{Cc}/u.test(text))
    throw new ConfigError(
      `${key}: expected no control characters, which a line of a batch script cannot have, got ${JSON.stringify(text)}`,
      key,
    );
  return /^[\w@%+=:,./-]*$/.test(text) ? text : `"${text.replace(/["\\]/g, '\\$&')}"`;
}

/** In this directory, with the number of the job in its name. */
function logFile(directory: string): string {
  const key = 'trainer.default_local_dir';
  if (directory.includes('\\'))
    throw new ConfigError(
      `${key}: expected a path without a backslash, after which sbatch leaves the number of the job out of the name of its log, got ${JSON.stringify(directory)}`,
      key,
    );
  return sbatchValue(key, join(directory.replaceAll('%', '%%'), 'slurm-%j.log'));
}
