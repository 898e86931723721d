import { checkPlace, readProcessPlace } from '../../../ts/launch/process_place';

const torchrun = {
  RANK: '3',
  WORLD_SIZE: '4',
  LOCAL_RANK: '1',
  LOCAL_WORLD_SIZE: '2',
  GROUP_RANK: '1',
  MASTER_ADDR: '10.0.0.1',
};

test('nothing in the environment places this process', () => {
  expect(readProcessPlace({ PATH: '/bin' })).toBeNull();
  // A batch script of Slurm has a SLURM_PROCID, but is no step.
  expect(readProcessPlace({ SLURM_PROCID: '0', SLURM_JOB_ID: '7', SLURM_NTASKS: '2' })).toBeNull();
});

test.each([
  ['torchrun', torchrun, { rank: 3, size: 4, localRank: 1, localSize: 2, host: 1 }],
  [
    'Open MPI',
    {
      OMPI_COMM_WORLD_RANK: '1',
      OMPI_COMM_WORLD_SIZE: '2',
      OMPI_COMM_WORLD_LOCAL_RANK: '0',
      OMPI_COMM_WORLD_LOCAL_SIZE: '1',
    },
    { rank: 1, size: 2, localRank: 0, localSize: 1, host: null },
  ],
  ['PMI', { PMI_RANK: '1', PMI_SIZE: '2' }, { rank: 1, size: 2, localRank: 0, localSize: 1, host: null }],
  [
    'Slurm',
    {
      SLURM_PROCID: '5',
      SLURM_STEP_ID: '0',
      SLURM_STEP_NUM_TASKS: '6',
      SLURM_LOCALID: '1',
      SLURM_NODEID: '2',
      SLURM_STEP_TASKS_PER_NODE: '2(x3)',
    },
    { rank: 5, size: 6, localRank: 1, localSize: 2, host: 2 },
  ],
  ['PET', { PET_NODE_RANK: '1', PET_NNODES: '2' }, { rank: 1, size: 2, localRank: 0, localSize: 1, host: 1 }],
  ['Kubernetes', { JOB_COMPLETION_INDEX: '0' }, { rank: 0, size: null, localRank: 0, localSize: 1, host: 0 }],
])('%s', (source, env, place) => {
  expect(readProcessPlace(env)).toEqual({ source, ...place });
});

test('torchrun counts anew inside of a step of Slurm', () => {
  const step = { SLURM_PROCID: '1', SLURM_STEP_ID: '0', SLURM_STEP_NUM_TASKS: '2', SLURM_LOCALID: '0' };
  expect(readProcessPlace({ ...torchrun, ...step })).toMatchObject({ source: 'torchrun', rank: 3, size: 4 });
});

/** What `salloc` gives the shell that it starts on the first node, where its cluster has LaunchParameters=use_interactive_step. */
const shellOfSalloc = {
  SLURM_JOB_ID: '7',
  SLURM_JOB_NODELIST: 'n[1-2]',
  SLURM_PROCID: '0',
  SLURM_LOCALID: '0',
  SLURM_NODEID: '0',
  SLURM_STEP_ID: '4294967290',
  SLURM_STEP_NUM_TASKS: '1',
  SLURM_STEP_TASKS_PER_NODE: '1',
};

test('the shell of salloc is a step of Slurm itself, and no process of a run', () => {
  expect(readProcessPlace(shellOfSalloc)).toBeNull();
  // As mpi/pmi2 numbers it, where that is the default of the cluster.
  expect(readProcessPlace({ ...shellOfSalloc, PMI_RANK: '0', PMI_SIZE: '1' })).toBeNull();
  const started = { PMI_RANK: '1', PMI_SIZE: '2', MPI_LOCALRANKID: '0', MPI_LOCALNRANKS: '1' };
  expect(readProcessPlace({ ...shellOfSalloc, ...started })).toMatchObject({
    source: 'PMI',
    rank: 1,
    size: 2,
  });
});

test('mpirun counts anew inside of an allocation: the step of Slurm is that of its daemons', () => {
  const daemon = { SLURM_PROCID: '0', SLURM_STEP_ID: '0', SLURM_STEP_NUM_TASKS: '1', SLURM_LOCALID: '0' };
  const openMpi = {
    OMPI_COMM_WORLD_RANK: '1',
    OMPI_COMM_WORLD_SIZE: '2',
    OMPI_COMM_WORLD_LOCAL_RANK: '0',
    OMPI_COMM_WORLD_LOCAL_SIZE: '1',
  };
  const place = { rank: 1, size: 2, localRank: 0, localSize: 1, host: null };
  expect(readProcessPlace({ ...openMpi, ...daemon })).toEqual({ source: 'Open MPI', ...place });
  const hydra = { PMI_RANK: '1', PMI_SIZE: '2', MPI_LOCALRANKID: '0', MPI_LOCALNRANKS: '1' };
  expect(readProcessPlace({ ...hydra, ...daemon })).toEqual({ source: 'PMI', ...place });
});

test('what one source leaves open of this host another says that numbers the same processes', () => {
  const step = {
    SLURM_PROCID: '5',
    SLURM_STEP_ID: '0',
    SLURM_STEP_NUM_TASKS: '8',
    SLURM_LOCALID: '1',
    SLURM_NODEID: '1',
    SLURM_STEP_TASKS_PER_NODE: '4(x2)',
  };
  const place = { rank: 5, size: 8, localRank: 1, localSize: 4, host: 1 };
  // srun --mpi=pmi2
  const pmi = readProcessPlace({ ...step, PMI_RANK: '5', PMI_SIZE: '8' });
  expect(pmi).toEqual({ source: 'PMI', ...place });
  checkPlace(pmi!, 2, 4);
  // A script that sets what PyTorch reads.
  const set = { RANK: '5', WORLD_SIZE: '8', LOCAL_RANK: '1' };
  expect(readProcessPlace({ ...step, ...set })).toEqual({ source: 'RANK', ...place });
  expect(() => readProcessPlace(set)).toThrow(
    /this is process 1 on its host \(RANK\), but not how many there are: set LOCAL_WORLD_SIZE$/,
  );
});

test.each([
  [
    { RANK: '0', WORLD_SIZE: '1', OMPI_COMM_WORLD_RANK: '1', OMPI_COMM_WORLD_SIZE: '2' },
    /RANK says rank 0 of 1, Open MPI says rank 1 of 2/,
  ],
  [
    { RANK: '1', WORLD_SIZE: '2', SLURM_PROCID: '0', SLURM_STEP_ID: '0', SLURM_STEP_NUM_TASKS: '2' },
    /RANK says rank 1 of 2, Slurm says rank 0 of 2/,
  ],
  [{ OMPI_COMM_WORLD_RANK: '2', OMPI_COMM_WORLD_SIZE: '2' }, /Open MPI says rank 2 of 2/],
  [{ RANK: 'first', WORLD_SIZE: '2' }, /RANK: expected an integer >= 0, got 'first'/],
  [{ ...torchrun, LOCAL_RANK: '2' }, /and 2 of 2 on this host/],
])('%j contradicts itself', (env, message) => {
  expect(() => readProcessPlace(env)).toThrow(message);
});

test('as many processes as hosts, or as workers', () => {
  const place = readProcessPlace(torchrun)!;
  checkPlace(place, 2, 2);
  checkPlace({ ...place, size: 2, localSize: 1, localRank: 0, rank: 1 }, 2, 8);
  expect(() => checkPlace(place, 2, 4)).toThrow(/torchrun has started 2 processes on this host/);
  expect(() => checkPlace(place, 3, 2)).toThrow(
    /trainer.nnodes is 3 .* torchrun has started 4 processes, 2 of them/,
  );
  expect(() => checkPlace({ ...place, host: 2 }, 2, 2)).toThrow(/torchrun has started this one on host 2/);
});
