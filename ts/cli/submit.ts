// `troupe submit`: hands a run to a scheduler, or prints what it would hand over.
import { spawnSync } from 'node:child_process';
import { resolve } from 'node:path';
import type { Argv } from 'yargs';
import { makeDirectories } from '../base/make_directories';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { TroupeError } from '../errors';
import { KUBERNETES_KINDS, VOLUME } from '../launch/kubernetes_options';
import { UsageError } from './report';

export const withSubmit = (y: Argv) =>
  y
    .positional('config', { type: 'string', demandOption: true, describe: 'YAML file' })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'key=value, as of troupe train',
    })
    .option('launcher', {
      choices: ['slurm', 'kubernetes'] as const,
      demandOption: true,
      describe: 'The scheduler; kubernetes: prints manifests for kubectl',
    })
    .option('sft', { type: 'boolean', default: false, describe: 'A configuration of troupe sft' })
    .option('dry-run', { type: 'boolean', default: false, describe: 'Print what would be handed over' })
    .option('time', { type: 'string', requiresArg: true, describe: "slurm: the job's time limit" })
    .option('notice', {
      type: 'number',
      requiresArg: true,
      default: 120,
      describe:
        'slurm: seconds before it at which the run saves and goes back to the queue; more than a phase and a save take',
    })
    .option('option', {
      type: 'string',
      array: true,
      nargs: 1,
      default: [] as string[],
      defaultDescription: 'none',
      describe: 'A further option of sbatch, such as --option=--partition=a100; may be repeated',
    })
    .option('kind', {
      choices: KUBERNETES_KINDS,
      default: 'jobset' as const,
      describe:
        'kubernetes: a JobSet; plain jobs, where JobSet is not installed; a TrainJob of Kubeflow with its runtime',
    })
    .option('image', { type: 'string', requiresArg: true, describe: 'kubernetes: image with Troupe in it' })
    .option('name', {
      type: 'string',
      requiresArg: true,
      default: 'troupe',
      describe: 'kubernetes: of all objects',
    })
    .option('namespace', { type: 'string', requiresArg: true, describe: 'kubernetes' })
    .option('volume', {
      type: 'string',
      array: true,
      nargs: 1,
      default: [] as string[],
      defaultDescription: 'none',
      describe: 'kubernetes: claim:/path of a volume that all pods see; may be repeated',
    })
    .option('grace', {
      type: 'number',
      requiresArg: true,
      default: 300,
      describe: 'kubernetes: seconds that a pod has to save before it is killed',
    });

type Arguments = Awaited<ReturnType<typeof withSubmit>['argv']>;

/** @throws UsageError for an option that is out of range */
export function submitTask(a: Arguments, overrides: readonly string[]): () => Promise<number> {
  return a.launcher === 'slurm' ? slurmTask(a, overrides) : kubernetesTask(a, overrides);
}

async function configOf(
  { sft }: Arguments,
  file: string,
  overrides: readonly string[],
): Promise<ResolvedConfig | ResolvedSftConfig> {
  const { loadConfig, loadSftConfig } = require('../config/config') as typeof import('../config/config');
  return sft ? loadSftConfig(file, overrides) : loadConfig(file, overrides);
}

const LABEL = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;
/** Also of a service, which must not begin with a digit. */
const NAME = /^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$/;

function kubernetesTask(a: Arguments, overrides: readonly string[]): () => Promise<number> {
  const { image, name, namespace = null, volume, grace, kind } = a;
  if (image === undefined) throw new UsageError('submit: expected --image for kubernetes');
  if (!NAME.test(name))
    throw new UsageError(
      `submit: --name: expected a DNS label of at most 40 characters that begins with a letter, got ${name}`,
    );
  if (namespace !== null && !LABEL.test(namespace))
    throw new UsageError(
      `submit: --namespace: expected a DNS label of at most 63 characters, got ${namespace}`,
    );
  const wrong = volume.find((one) => !VOLUME.test(one));
  if (wrong !== undefined) throw new UsageError(`submit: --volume: expected claim:/path, got ${wrong}`);
  if (!(Number.isInteger(grace) && grace >= 0 && grace <= 86_400))
    throw new UsageError(`submit: --grace: expected seconds from 0 to 86400, got ${grace}`);
  return async () => {
    const file = a.config as string;
    const { manifests, manifestText } =
      require('../launch/kubernetes') as typeof import('../launch/kubernetes');
    const config = await configOf(a, file, overrides);
    const program = a.sft ? 'sft' : 'train';
    const options = {
      kind,
      name,
      namespace,
      image,
      volumes: volume,
      program,
      file,
      overrides,
      grace,
    } as const;
    process.stdout.write(manifestText(manifests(config, options)));
    return 0;
  };
}

/** As sbatch reads it: `30`, `30:00`, `4:00:00`, `1-0`, `1-12:30`, `1-12:30:00`, or none. */
const TIME_LIMIT = /^(\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|infinite|unlimited)$/i;

/** @throws UsageError for an option that is out of range */
function slurmTask(a: Arguments, overrides: readonly string[]): () => Promise<number> {
  const { notice, time = null } = a;
  if (!(Number.isInteger(notice) && notice >= 1 && notice <= 65535))
    throw new UsageError(`submit: --notice: expected seconds from 1 to 65535, got ${notice}`);
  if (time !== null && !TIME_LIMIT.test(time))
    throw new UsageError(
      `submit: --time: expected minutes, hours:minutes:seconds or days-hours, such as 4:00:00, got ${time}`,
    );
  const wrong = [...a.option, ...(time === null ? [] : [`--time=${time}`])].find(
    (o) => !/^--?\w[^\n]*$/.test(o),
  );
  if (wrong !== undefined)
    throw new UsageError(`submit: --option: expected an option such as --partition=a100, got ${wrong}`);
  return async () => {
    const file = resolve(a.config as string);
    const { sbatchScript } = require('../launch/sbatch') as typeof import('../launch/sbatch');
    const config = await configOf(a, file, overrides);
    const script = sbatchScript(config, {
      program: a.sft ? 'sft' : 'train',
      file,
      overrides,
      options: a.option,
      time,
      notice,
      directory: process.cwd(),
    });
    if (a.dryRun) {
      process.stdout.write(script);
      return 0;
    }
    // sbatch would not make the directory of its log.
    makeDirectories(config.trainer.default_local_dir);
    const sbatch = spawnSync('sbatch', [], { input: script, encoding: 'utf8' });
    if (sbatch.error !== undefined && 'code' in sbatch.error && sbatch.error.code === 'ENOENT')
      throw new TroupeError(
        'IO',
        'there is no sbatch on this machine (PATH): submit where Slurm is, or print the job with --dry-run',
      );
    if (sbatch.error !== undefined || sbatch.status !== 0)
      throw new TroupeError('IO', `sbatch refused the job: ${sbatch.error?.message ?? sbatch.stderr.trim()}`);
    process.stdout.write(sbatch.stdout);
    return 0;
  };
}
