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

test.each([
  [
    { RANK: '0', WORLD_SIZE: '1', OMPI_COMM_WORLD_RANK: '1', OMPI_COMM_WORLD_SIZE: '2' },
    /RANK says rank 0 of 1, Open MPI says rank 1 of 2/,
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
});
