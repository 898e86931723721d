import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig } from '../../../ts/config/config';
import { gatherHosts } from '../../../ts/launch/launch';
import { RunClaim } from '../../../ts/run/run_claim';

test('a second controller leaves the rendezvous of a run that is at work as it is', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-gathering-'));
  const claim = await RunClaim.take(directory);
  try {
    const file = join(directory, '.rendezvous.json');
    writeFileSync(file, 'of the run that is at work');
    const run = join(directory, 'run.yaml');
    writeFileSync(run, 'data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ./m } }\n');
    const config = loadConfig(run, [
      'algorithm.adv_estimator=grpo',
      'trainer.nnodes=2',
      'trainer.launcher.type=external',
      'trainer.launcher.wait=2',
      `trainer.default_local_dir=${directory}`,
    ]);
    await expect(
      gatherHosts(config, { part: 'controller', type: 'external' }, { say: () => undefined }),
    ).rejects.toMatchObject({ code: 'IN_USE', message: expect.stringContaining(`process ${process.pid}`) });
    expect(readdirSync(directory)).toEqual(['.rendezvous.json', 'run.yaml']);
    expect(readFileSync(file, 'utf8')).toBe('of the run that is at work');
  } finally {
    claim.release();
    rmSync(directory, { recursive: true });
  }
});
