import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig } from '../../../ts/config/config';
import { partOf } from '../../../ts/launch/launch';

// Which launchers a configuration may ask for, and what a process is for the run that it describes.

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'troupe-launcher-'));
  writeFileSync(
    join(directory, 'run.yaml'),
    'data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ./m } }\nalgorithm: { adv_estimator: grpo }\n',
  );
});
afterAll(() => rmSync(directory, { recursive: true }));

const load = (...overrides: string[]) =>
  loadConfig(
    join(directory, 'run.yaml'),
    overrides.map((override) => `trainer.${override}`),
  );

test.each([
  [
    ['nnodes=2', 'launcher.type=local'],
    /trainer\.nnodes: expected 1 because trainer\.launcher\.type is local, got 2/,
  ],
  [
    ['nnodes=2', 'launcher.type=ssh', 'launcher.hosts=[a]'],
    /trainer\.launcher\.hosts: expected at least 2 .*, got 1/,
  ],
  [['launcher.hosts=[a]'], /trainer\.launcher\.hosts: expected none because .* is not given/],
  [['launcher.token_file=x'], /trainer\.launcher\.token_file: expected none/],
  [['launcher.ports=9-1'], /trainer\.launcher\.ports: expected a range of ports/],
  [['launcher.type=pbs'], /trainer\.launcher\.type: expected one of local, slurm, ray, ssh, env, external/],
])('%j is refused', (overrides, message) => {
  expect(() => load(...overrides)).toThrow(message);
});

test('what a process is for a run', () => {
  const torchrun = (rank: number) => ({
    RANK: String(rank),
    WORLD_SIZE: '4',
    LOCAL_RANK: String(rank % 2),
    LOCAL_WORLD_SIZE: '2',
    GROUP_RANK: String(Math.floor(rank / 2)),
  });
  const two = load('nnodes=2', 'n_gpus_per_node=2', 'default_local_dir=/runs/x');
  expect(partOf(load(), torchrun(1))).toEqual({ part: 'alone' });
  expect(partOf(two, torchrun(0))).toEqual({ part: 'controller', type: 'env' });
  expect(partOf(two, torchrun(1))).toMatchObject({ part: 'idle' });
  expect(partOf(two, torchrun(2))).toEqual({ part: 'agent', index: 1, file: '/runs/x/.rendezvous.json' });
  expect(partOf(two, { SLURM_JOB_ID: '7', SLURM_JOB_NODELIST: 'n[1-2]', SLURM_PROCID: '0' })).toEqual({
    part: 'controller',
    type: 'slurm',
  });
  // In the shell of salloc, which Slurm counts as a step of one task.
  const shell = { SLURM_STEP_ID: '4294967290', SLURM_STEP_NUM_TASKS: '1', SLURM_PROCID: '0' };
  expect(partOf(two, { SLURM_JOB_ID: '7', SLURM_JOB_NODELIST: 'n[1-2]', ...shell })).toEqual({
    part: 'controller',
    type: 'slurm',
  });
  expect(() => partOf(two, {})).toThrow(
    /trainer\.nnodes is 2, but nothing here says how to reach other hosts/,
  );
  expect(() => partOf(load('launcher.type=env'), {})).toThrow(
    /nothing in the environment says which process/,
  );
});
