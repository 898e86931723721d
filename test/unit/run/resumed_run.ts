// Whole runs over fakes, to be resumed.
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FakeEngines, read, runDirectory, trainer } from '../../helpers/fake_run';

const base = [
  'algorithm.use_kl_in_reward=true',
  'algorithm.kl_ctrl.type=adaptive',
  'trainer.total_training_steps=4',
  'trainer.save_freq=2',
];
export const LATEST = 'latest_checkpointed_iteration.txt';

/** A run over fakes with what it said. */
export async function session(directory: string, overrides: string[] = [], engines = new FakeEngines()) {
  const said: string[] = [];
  const options = { log: (line: string) => void said.push(line) };
  const run = trainer({ directory, overrides: [...base, ...overrides], engines, options });
  const result = await run.trainer.fit();
  return { result, said, updates: engines.updates.length };
}

export const steps = (directory: string): string[] =>
  readdirSync(directory)
    .filter((name) => name.startsWith('global_step'))
    .sort();

/**
 * For a file of tests: copies of a finished run whose newest checkpoint is that of step 2, and the metrics of all its steps, which are there
 * when tests run.
 */
export function stoppedAtTwo(): { copy: () => string; whole: { metrics: string } } {
  const whole = { metrics: '' };
  const prototype = runDirectory();
  beforeAll(async () => {
    await session(prototype);
    rmSync(join(prototype, 'global_step_4'), { recursive: true });
    writeFileSync(join(prototype, LATEST), '2');
    whole.metrics = read(prototype, 'metrics.jsonl');
  });
  const copy = (): string => {
    const directory = mkdtempSync(join(tmpdir(), 'resume-'));
    cpSync(prototype, directory, { recursive: true });
    return directory;
  };
  return { copy, whole };
}

/** Changes what the checkpoint of step 2 says of the trainer. */
export const editState = (directory: string, edit: (state: Record<string, unknown>) => void): void => {
  const path = join(directory, 'global_step_2/trainer.json');
  const state = JSON.parse(readFileSync(path, 'utf8'));
  edit(state);
  writeFileSync(path, JSON.stringify(state));
};
