// The hosts that a configuration asks for.
import { join } from 'node:path';
import { counted } from '../base/text';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { workersPerMachine } from '../config/derived/pools';
import type { LauncherName } from '../config/schema/launchers';
import { ConfigError, TroupeError } from '../errors';
import { namedAddress, outwardAddress } from '../host/addresses';
import { runHostAgent } from '../host/run_agent';
import { RunClaim } from '../run/run_claim';
import { agentCommand } from './agent_command';
import { HostPool, type HostPoolOptions } from './host_pool';
import { checkPlace, type ProcessPlace, readProcessPlace } from './process_place';
import { rayStarter } from './ray';
import { readToken, writeRendezvous } from './rendezvous_file';
import { inAllocation, slurmStarter } from './slurm';
import { sshStarter } from './ssh';
import { commandStarter, type HostStarter } from './starter';

type Config = ResolvedConfig | ResolvedSftConfig;
type Environment = Readonly<Record<string, string | undefined>>;

/** What this process is for a run. */
export type Part =
  /** It trains, on this machine alone. */
  | { part: 'alone' }
  /** It trains, on these hosts. */
  | { part: 'controller'; type: Exclude<LauncherName, 'local'> }
  /** It serves a controller as the agent of its host. */
  | { part: 'agent'; index: number | null; file: string }
  /** Another process speaks for its host. */
  | { part: 'idle'; place: ProcessPlace };

/** @throws ConfigError when nothing says how several hosts are reached; TroupeError INVALID_ARGUMENT for a contradiction */
export function partOf(config: Config, env: Environment = process.env): Part {
  const { nnodes, n_gpus_per_node: perHost } = config.trainer;
  const type = launcherOf(config, env);
  if (type === 'local') return { part: 'alone' };
  if (type !== 'env') return { part: 'controller', type };
  const place = readProcessPlace(env);
  if (place === null)
    throw new ConfigError(
      'trainer.launcher.type: env, but nothing in the environment says which process this is (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, ' +
        'SLURM_PROCID, PET_NODE_RANK, JOB_COMPLETION_INDEX): start it by torchrun, mpirun or srun',
      'trainer.launcher.type',
    );
  checkPlace(place, nnodes, perHost);
  if (place.rank === 0) return { part: 'controller', type };
  if (place.localRank > 0) return { part: 'idle', place };
  return { part: 'agent', index: place.host, file: rendezvousFile(config) };
}

function launcherOf(config: Config, env: Environment): LauncherName {
  const { nnodes, launcher } = config.trainer;
  if (launcher.type !== null) return launcher.type;
  if (nnodes === 1) return 'local';
  if (readProcessPlace(env) !== null) return 'env';
  if (inAllocation(env)) return 'slurm';
  throw new ConfigError(
    `trainer.nnodes is ${nnodes}, but nothing here says how to reach other hosts: set trainer.launcher.type, or start in an allocation ` +
      'of Slurm, by torchrun or by mpirun',
    'trainer.launcher.type',
  );
}

const rendezvousFile = ({ trainer }: Config): string =>
  trainer.launcher.rendezvous ?? join(trainer.default_local_dir, '.rendezvous.json');

/** Serves the controller of the run until it is done. @returns the exit code */
export function serveAsAgent(
  config: Config,
  { index, file }: Extract<Part, { part: 'agent' }>,
  say: (line: string) => void,
): Promise<number> {
  const { network, wait } = config.trainer.launcher;
  const orphanMs = 1000 * config.trainer.fault_tolerance.orphan_wait;
  return runHostAgent({ source: { file }, network, index, waitMs: 1000 * wait, orphanMs, say });
}

export interface LaunchOptions {
  say: (line: string) => void;
  onNotice?: HostPoolOptions['onNotice'];
  /** Hosts beyond trainer.nnodes that may dial in. */
  spares?: number;
  /** The run may go on with fewer hosts; `resumes`: it has been at work before. */
  elastic?: { resumes: boolean };
}

/** How long an elastic run waits for a lost host to come back before it goes on without. */
const ELASTIC_WAIT_MS = 15_000;

/** Started by themselves, other hosts look into the rendezvous file. */
const isByFile = (type: LauncherName): boolean => type === 'env' || type === 'external';

/** Gathers the hosts of a run; `close` of the pool ends all that was started on them. @throws as HostPool.gather; TroupeError IN_USE */
export async function gatherHosts(
  config: Config,
  part: Extract<Part, { part: 'controller' }>,
  options: LaunchOptions,
): Promise<HostPool> {
  if (!isByFile(part.type)) return await gather(config, part, options);
  // Of a run that is at work in this directory the file stays as it is: its hosts look there again.
  const claim = await RunClaim.take(config.trainer.default_local_dir);
  try {
    return await gather(config, part, options);
  } finally {
    claim.release();
  }
}

async function gather(
  config: Config,
  { type }: Extract<Part, { part: 'controller' }>,
  { say, onNotice, spares = 0, elastic }: LaunchOptions,
): Promise<HostPool> {
  const { nnodes, n_gpus_per_node: perHost, launcher, worker_timeouts: timeouts } = config.trainer;
  const file = rendezvousFile(config);
  let withdraw = (): void => undefined;
  say(`waiting for ${counted(nnodes, 'host')} (${type})`);
  const pool = await HostPool.gather({
    hosts: nnodes,
    spares,
    place: {
      address: launcher.network === null ? outwardAddress() : namedAddress(launcher.network),
      ports: launcher.ports,
    },
    ...(launcher.token_file === null ? {} : { token: readToken(launcher.token_file) }),
    starter: starterOf(config, type, say),
    announce: (address) => {
      if (isByFile(type)) withdraw = writeRendezvous(file, address);
      if (type === 'external') say(`agents reach this controller at ${address.controllers.join(', ')}`);
    },
    withdraw: () => withdraw(),
    waitMs: 1000 * launcher.wait,
    ...(elastic === undefined ? {} : { elastic: { waitMs: ELASTIC_WAIT_MS, ...elastic } }),
    deadTimeoutMs: 1000 * timeouts.silence,
    say,
    ...(onNotice === undefined ? {} : { onNotice }),
  });
  for (const [i, { facts }] of pool.members.entries())
    say(
      `host ${i}: ${facts.name} at ${facts.address}${facts.interface === null ? '' : ` (${facts.interface})`}, ` +
        `${facts.cores} cores, ${facts.gpus ?? 'no'} GPUs: ranks ${i * perHost} to ${(i + 1) * perHost - 1}`,
    );
  return pool;
}

function starterOf(
  config: Config,
  type: Exclude<LauncherName, 'local'>,
  say: (line: string) => void,
): HostStarter | null {
  const { nnodes, launcher } = config.trainer;
  const { network } = launcher;
  const perHost = workersPerMachine(config);
  switch (type) {
    case 'slurm':
      return slurmStarter(nnodes, network, say);
    case 'ray':
      return rayStarter({
        python: launcher.python,
        address: launcher.ray_address,
        hosts: nnodes,
        bundle: { CPU: perHost, ...(config.trainer.device === 'cpu' ? {} : { GPU: perHost }) },
        wait: launcher.wait,
        network,
        say,
      });
    case 'ssh':
      return sshStarter(launcher.hosts, network, say);
    case 'env': // the others come by themselves
      return commandStarter(
        ['this host'],
        (_, index) => agentCommand({ index, network, from: 'stdin' }),
        say,
      );
    case 'external':
      return null;
    default:
      throw new TroupeError('INTERNAL', `no launcher ${String(type)}`);
  }
}
