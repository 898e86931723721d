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
  /** It may have been started by these, which number what they have started themselves: its daemons, say. */
  inside?: readonly string[];
}

/** The same processes may be numbered by several sources. */
interface Numbers extends Omit<ProcessPlace, 'localRank' | 'localSize'> {
  /** null: the source does not say. */
  localRank: number | null;
  localSize: number | null;
  inside: readonly string[];
}

const SLURM = 'Slurm';
/** Slurm's own steps, a batch script and the shell of salloc, have the highest numbers of 32 bits: they are no processes of a run. */
const FIRST_OWN_STEP = 0xffff_fff0;

const SOURCES: readonly Source[] = [
  // Innermost first.
  {
    name: 'torchrun',
    rank: 'RANK',
    size: 'WORLD_SIZE',
    localRank: 'LOCAL_RANK',
    localSize: 'LOCAL_WORLD_SIZE',
    host: 'GROUP_RANK',
    with: ['GROUP_RANK'],
    inside: ['RANK', 'Open MPI', 'PMI', SLURM, 'PET', 'Kubernetes'],
  },
  { name: 'RANK', rank: 'RANK', size: 'WORLD_SIZE', localRank: 'LOCAL_RANK', localSize: 'LOCAL_WORLD_SIZE' },
  {
    name: 'Open MPI',
    rank: 'OMPI_COMM_WORLD_RANK',
    size: 'OMPI_COMM_WORLD_SIZE',
    localRank: 'OMPI_COMM_WORLD_LOCAL_RANK',
    localSize: 'OMPI_COMM_WORLD_LOCAL_SIZE',
    inside: [SLURM],
  },
  {
    name: 'PMI',
    rank: 'PMI_RANK',
    size: 'PMI_SIZE',
    localRank: 'MPI_LOCALRANKID',
    localSize: 'MPI_LOCALNRANKS',
    inside: [SLURM],
  },
  {
    name: SLURM,
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
 * Where the environment places this process; null: nothing in it does. What the innermost source does not say of this host is that of another
 * one that numbers the same processes.
 * @throws TroupeError INVALID_ARGUMENT for numbers that are none, or that contradict each other
 */
export function readProcessPlace(env: Environment): ProcessPlace | null {
  if (Number(env['SLURM_STEP_ID']) >= FIRST_OWN_STEP) return readProcessPlace(outsideOfStep(env));
  const all = SOURCES.filter(
    (source) => env[source.rank] && (source.with ?? []).every((name) => env[name]),
  ).map((source) => readSource(source, env));
  const [first] = all;
  if (first === undefined) return null;
  const other = all.find((one) => contradicts(first, one) && !first.inside.includes(one.source));
  if (other !== undefined) throw contradiction(first, other);
  return placeOf(all.filter((one) => !contradicts(first, one)));
}

/** Without what one of Slurm's own steps says of itself. Where PMI is the default of its cluster, it has such numbers, too. */
function outsideOfStep({ SLURM_STEP_ID: _, ...env }: Environment): Environment {
  const { PMI_RANK, SLURM_PROCID } = env;
  const isOwn = PMI_RANK === SLURM_PROCID && env['PMI_SIZE'] === env['SLURM_STEP_NUM_TASKS'];
  return isOwn ? { ...env, PMI_RANK: undefined } : env;
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

function readSource(source: Source, env: Environment): Numbers {
  const number = (name: string | undefined): number | null => {
    const text = name === undefined ? undefined : env[name];
    if (name === undefined || text === undefined || text === '') return null;
    if (/^\d{1,9}$/.test(text)) return Number(text);
    throw new TroupeError('INVALID_ARGUMENT', `${name}: expected an integer >= 0, got '${text}'`);
  };
  return {
    source: source.name,
    rank: number(source.rank) as number,
    size: number(source.size),
    localRank: number(source.localRank),
    localSize: number(source.localSize) ?? slurmTasks(source, env),
    host: number(source.host),
    inside: source.inside ?? [],
  };
}

/** Of sources that number the same processes, the innermost first. */
function placeOf(sources: readonly Numbers[]): ProcessPlace {
  const { source, rank } = sources[0] as Numbers;
  const said = (key: 'size' | 'localRank' | 'localSize' | 'host'): number | null =>
    sources.find((one) => one[key] !== null)?.[key] ?? null;
  const size = said('size');
  const localRank = said('localRank') ?? 0;
  const localSize = said('localSize') ?? 1;
  const fits = (size === null || rank < size) && localRank < localSize && localRank <= rank;
  if (fits) return { source, rank, size, localRank, localSize, host: said('host') };
  if (said('localSize') === null && localRank > 0)
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `the environment says that this is process ${localRank} on its host (${source}), but not how many there are: set LOCAL_WORLD_SIZE`,
    );
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `the environment contradicts itself: ${source} says rank ${rank} of ${size}, and ${localRank} of ${localSize} on this host`,
  );
}

/** SLURM_STEP_TASKS_PER_NODE is "2(x3),1"; of a step with as many tasks on each node, "2(x3)". */
function slurmTasks({ name }: Source, env: Environment): number | null {
  const text = name === SLURM ? env['SLURM_STEP_TASKS_PER_NODE'] : undefined;
  const match = text === undefined ? null : /^(\d+)(\(x\d+\))?$/.exec(text);
  return match === null ? null : Number(match[1]);
}

const contradicts = (a: Numbers, b: Numbers): boolean =>
  a.rank !== b.rank || (a.size !== null && b.size !== null && a.size !== b.size);

function contradiction(a: Numbers, b: Numbers): TroupeError {
  const say = ({ source, rank, size }: Numbers): string =>
    `${source} says rank ${rank}${size === null ? '' : ` of ${size}`}`;
  return new TroupeError(
    'INVALID_ARGUMENT',
    `the environment contradicts itself: ${say(a)}, ${say(b)}: unset the variables of the one that did not start this process`,
  );
}
