import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { RunClaim } from '../../../ts/run/run_claim';
import { FakeEngines, lines, read, runDirectory, trainer } from '../../helpers/fake_run';
import { marked } from '../../helpers/left_over';

const ROOT = resolve(__dirname, '../../..');

/** A process that claims a directory and keeps it. */
async function owner(directory: string) {
  const program = `require(${JSON.stringify(join(ROOT, 'ts/run/run_claim.ts'))}).RunClaim.take(process.argv[1]).then(() => {
    console.log('claimed');
    setInterval(() => {}, 1000);
  })`;
  const child = spawn(
    process.execPath,
    ['-r', join(ROOT, 'test/helpers/register_ts.js'), '-e', program, directory],
    { env: { ...process.env, ...marked(() => null) }, stdio: ['ignore', 'pipe', 'inherit'] },
  );
  await once(child.stdout, 'data');
  return child;
}

test('a directory is of one process, by whatever path, until that has ended', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'claim-'));
  const link = `${directory}-link`;
  symlinkSync(directory, link);
  const child = await owner(directory);
  for (const path of [directory, link, `${directory}/../${directory.split('/').at(-1)}/`]) {
    await expect(RunClaim.take(path)).rejects.toMatchObject({
      code: 'IN_USE',
      message: expect.stringMatching(new RegExp(`in use by another run \\(process ${child.pid}\\)`)),
    });
  }
  child.kill('SIGKILL');
  await once(child, 'exit');
  (await RunClaim.take(directory, 0)).release();
  (await RunClaim.take(directory, 0)).release();
  rmSync(link);
});

test('a stopped process keeps it; one that ends meanwhile is waited for', async () => {
  const directory = join(mkdtempSync(join(tmpdir(), 'claim-')), 'to', 'be', 'made');
  const child = await owner(directory);
  child.kill('SIGSTOP');
  await expect(RunClaim.take(directory, 0)).rejects.toThrow(/a process that does not answer/);
  const claim = RunClaim.take(directory, 60_000);
  child.kill('SIGKILL');
  (await claim).release();
  expect(existsSync(directory)).toBe(false);
});

const run = (directory: string, engines: FakeEngines) =>
  trainer({ directory, overrides: ['trainer.total_training_steps=3', 'trainer.save_freq=1'], engines })
    .trainer;

test('a second run in the directory of one under way is refused, and the first is as if nothing had happened', async () => {
  const alone = runDirectory();
  await run(alone, new FakeEngines()).fit();
  const directory = runDirectory();
  const engines = new FakeEngines();
  const second = new FakeEngines();
  let refused: Promise<unknown> | null = null;
  engines.onCall = (_, name) => {
    if (name === 'updatePolicy') refused ??= run(directory, second).fit();
    refused?.catch(() => undefined);
  };
  await run(directory, engines).fit();
  await expect(refused).rejects.toMatchObject({ code: 'IN_USE' });
  expect(second.calls).toEqual([]);
  expect(read(directory, 'metrics.jsonl')).toBe(read(alone, 'metrics.jsonl'));
  // It is free again, also after one that failed before there was an engine.
  await expect(
    trainer({ directory, options: { data: () => Promise.reject(new Error('no data')) } }).trainer.fit(),
  ).rejects.toThrow('no data');
  expect((await run(directory, new FakeEngines()).fit()).step).toBe(3);
  expect(existsSync(join(directory, '.writer'))).toBe(false);
});

test('who only wants to look at a run under way is told how, and can', async () => {
  const [directory, elsewhere] = [runDirectory(), runDirectory()];
  const look = (path: string, ...more: string[]): Promise<unknown> =>
    trainer({ directory: path, overrides: ['trainer.val_only=true', ...more] }).trainer.fit();
  const engines = new FakeEngines();
  let looks: Promise<unknown>[] = [];
  engines.onCall = (_, name) => {
    if (name !== 'updatePolicy' || !existsSync(join(directory, 'global_step_1')) || looks.length > 0) return;
    const saved = [
      'trainer.resume_mode=resume_path',
      `trainer.resume_from_path=${join(directory, 'global_step_1')}`,
    ];
    looks = [look(directory), look(elsewhere, ...saved)];
    for (const one of looks) one.catch(() => undefined);
  };
  await run(directory, engines).fit();
  const [refused, other] = looks;
  await expect(refused).rejects.toMatchObject({
    code: 'IN_USE',
    message: expect.stringMatching(
      /val_only.*another trainer\.default_local_dir, trainer\.resume_mode=resume_path and trainer\.resume_from_path/,
    ),
  });
  await expect(other).resolves.toMatchObject({ step: 1, finalModel: null });
});

test('a run on another machine that begins later ends the one before it, which writes nothing more', async () => {
  const directory = runDirectory();
  const engines = new FakeEngines();
  engines.onCall = (_, name) => {
    if (name === 'updatePolicy' && engines.updates.length === 1)
      writeFileSync(join(directory, '.writer'), 'process 7 on elsewhere, 0123');
  };
  await expect(run(directory, engines).fit()).rejects.toMatchObject({
    code: 'IN_USE',
    message: expect.stringContaining('process 7 on elsewhere, which began later'),
  });
  expect(lines(directory).map(({ step }) => step)).toEqual([0, 1]);
  expect(read(directory, 'events.jsonl')).not.toMatch(/"kind":"(error|end)"/);
  expect(read(directory, '.writer')).toBe('process 7 on elsewhere, 0123');
});
