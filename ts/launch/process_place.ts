// Which of the processes of a run this one is, as torchrun, an MPI, Slurm or Kubernetes says in the environment.
import { TroupeError } from '../errors';

export interface ProcessPlace {
  /** Who says so. */
  source: string;
  /** Of all processes that were started, from 0; the first is the controller. */
  rank: number;
  /** null: the source does not say. */
  size: number | null;
  /** Among the processes on its host: the first one speaks for the host. */
  localRank: number;
  localSize: number;
  /** Of its host, where the source numbers hosts. */
  host: number | null;
}

type Environment = Readonly<Record<string, string | undefined>>;

interface Source {
  name: string;
  /** Variables that hold the numbers; those that are not given are not known. */
  rank: string;
  size?: string;
  localRank?: string;
  localSize?: string;
  host?: string;
  /** Variables that must be there as well for it to be this source. */
  with?: readonly string[];
}

const SOURCES: readonly Source[] = [
  // Innermost first: torchrun may run inside a step of Slurm, and then counts anew.
  {
    name: 'torchrun',
    rank: 'RANK',
    size: 'WORLD_SIZE',
    localRank: 'LOCAL_RANK',
    localSize: 'LOCAL_WORLD_SIZE',
    host: 'GROUP_RANK',
    with: ['GROUP_RANK'],
  },
  { name: 'RANK', rank: 'RANK', size: 'WORLD_SIZE', localRank: 'LOCAL_RANK', localSize: 'LOCAL_WORLD_SIZE' },
  {
    name: 'Open MPI',
    rank: 'OMPI_COMM_WORLD_RANK',
    size: 'OMPI_COMM_WORLD_SIZE',
    localRank: 'OMPI_COMM_WORLD_LOCAL_RANK',
    localSize: 'OMPI_COMM_WORLD_LOCAL_SIZE',
  },
  {
    name: 'PMI',
    rank: 'PMI_RANK',
    size: 'PMI_SIZE',
    localRank: 'MPI_LOCALRANKID',
    localSize: 'MPI_LOCALNRANKS',
  },
  {
    name: 'Slurm',
    rank: 'SLURM_PROCID',
    size: 'SLURM_STEP_NUM_TASKS',
    localRank: 'SLURM_LOCALID',
    host: 'SLURM_NODEID',
    with: ['SLURM_STEP_ID', 'SLURM_STEP_NUM_TASKS'],
  },
  { name: 'PET', rank: 'PET_NODE_RANK', size: 'PET_NNODES', host: 'PET_NODE_RANK' },
  { name: 'Kubernetes', rank: 'JOB_COMPLETION_INDEX', host: 'JOB_COMPLETION_INDEX' },
];

/**
 * Where the environment places this process; null: nothing in it does.
 * @throws TroupeError INVALID_ARGUMENT for numbers that are none, or that contradict each other
 */
export function readProcessPlace(env: Environment): ProcessPlace | null {
  const places = SOURCES.filter(
    (source) => env[source.rank] && (source.with ?? []).every((name) => env[name]),
  ).map((source) => readSource(source, env));
  const [first] = places;
  if (first === undefined) return null;
  // A torchrun is started by others, which number its agents; the rest number the same processes.
  if (first.source !== 'torchrun')
    for (const other of places) if (contradicts(first, other)) throw contradiction(first, other);
  return first;
}

/**
 * Whether a run on `hosts` hosts with `perHost` workers on each can be started so: by one process on each host, or by one for each worker.
 * @throws TroupeError INVALID_ARGUMENT saying which number does not fit
 */
export function checkPlace(place: ProcessPlace, hosts: number, perHost: number): void {
  const { source, size, localSize } = place;
  const refuse = (what: string): never => {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `trainer.nnodes is ${hosts} and trainer.n_gpus_per_node ${perHost}, but ${source} has started ${what}: ` +
        'start one process on each host (or one for each worker), on as many hosts as trainer.nnodes says',
    );
  };
  if (localSize !== 1 && localSize !== perHost) refuse(`${localSize} processes on this host`);
  if (size !== null && size !== hosts * localSize)
    refuse(`${size} processes, ${localSize} of them on this host`);
  if (place.host !== null && place.host >= hosts) refuse(`this one on host ${place.host}`);
}

function readSource(source: Source, env: Environment): ProcessPlace {
  const number = (name: string | undefined): number | null => {
    const text = name === undefined ? undefined : env[name];
    if (name === undefined || text === undefined || text === '') return null;
    if (/^\d{1,9}$/.test(text)) return Number(text);
    throw new TroupeError('INVALID_ARGUMENT', `${name}: expected an integer >= 0, got '${text}'`);
  };
  const rank = number(source.rank) as number;
  const size = number(source.size);
  const localRank = number(source.localRank) ?? 0;
  const localSize = number(source.localSize) ?? slurmTasks(source, env) ?? 1;
  const host = number(source.host);
  const fits = (size === null || rank < size) && localRank < localSize && localRank <= rank;
  if (fits) return { source: source.name, rank, size, localRank, localSize, host };
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `the environment contradicts itself: ${source.name} says rank ${rank} of ${size}, and ${localRank} of ${localSize} on this host`,
  );
}

/** SLURM_STEP_TASKS_PER_NODE is "2(x3),1"; of a step with as many tasks on each node, "2(x3)". */
function slurmTasks({ name }: Source, env: Environment): number | null {
  const text = name === 'Slurm' ? env['SLURM_STEP_TASKS_PER_NODE'] : undefined;
  const match = text === undefined ? null : /^(\d+)(\(x\d+\))?$/.exec(text);
  return match === null ? null : Number(match[1]);
}

const contradicts = (a: ProcessPlace, b: ProcessPlace): boolean =>
  a.rank !== b.rank || (a.size !== null && b.size !== null && a.size !== b.size);

function contradiction(a: ProcessPlace, b: ProcessPlace): TroupeError {
  const say = ({ source, rank, size }: ProcessPlace): string =>
    `${source} says rank ${rank}${size === null ? '' : ` of ${size}`}`;
  return new TroupeError(
    'INVALID_ARGUMENT',
    `the environment contradicts itself: ${say(a)}, ${say(b)}: unset the variables of the one that did not start this process`,
  );
}
