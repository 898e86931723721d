// Whether hosts and what starts processes on them go together.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';

type TrainerSection = (ResolvedConfig | ResolvedSftConfig)['trainer'];

/** @throws ConfigError for hosts that nothing can start, or that are not as many as the nodes */
export function checkLauncher({ nnodes, launcher, checkpoint_staging: staging }: TrainerSection): void {
  const { type, hosts, token_file: tokenFile } = launcher;
  if (type === 'local' && nnodes !== 1)
    throw new ConfigError(
      `trainer.nnodes: expected 1 because trainer.launcher.type is local, got ${nnodes}: a launcher for several machines is one of slurm, ray, ssh, env, external`,
      'trainer.nnodes',
    );
  if (nnodes > 1 && (staging.async || staging.every_step) && staging.directory === null)
    throw new ConfigError(
      `trainer.checkpoint_staging.directory: expected a directory in memory that all ${nnodes} hosts share: /dev/shm is one host's own`,
      'trainer.checkpoint_staging.directory',
    );
  if (type === 'ssh' && hosts.length < nnodes)
    throw new ConfigError(
      `trainer.launcher.hosts: expected at least ${nnodes} because trainer.nnodes is ${nnodes}, got ${hosts.length}`,
      'trainer.launcher.hosts',
    );
  if (type !== 'ssh' && hosts.length > 0)
    throw new ConfigError(
      `trainer.launcher.hosts: expected none because trainer.launcher.type is ${type ?? 'not given'}: they are for ssh`,
      'trainer.launcher.hosts',
    );
  if (type !== 'external' && tokenFile !== null)
    throw new ConfigError(
      `trainer.launcher.token_file: expected none because trainer.launcher.type is ${type ?? 'not given'}: it is for external`,
      'trainer.launcher.token_file',
    );
}
