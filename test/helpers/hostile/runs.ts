// What may lie in a run directory when a run begins there.
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { CheckpointStore } from '../../../ts/run/checkpoint_store';
import type { Cases, HostileCase } from './case';

const LATEST = 'latest_checkpointed_iteration.txt';

const LATESTS: readonly [string, string | Buffer][] = [
  ['a word', 'soon'],
  ['control characters', '\u001b[2J\u0007'],
  ['1 MB', 'x'.repeat(1_000_000)],
  ['zeros', Buffer.alloc(100)],
  ['a negative number', '-1'],
  ['a fraction', '1.5'],
  ['a path', '../../etc'],
];

const STATES: readonly [string, string | Buffer][] = [
  ['nothing', ''],
  ['no JSON', '{"version": \u001b[31m'],
  ['null', 'null'],
  ['a list', '[]'],
  ['a number', '5'],
  ['zeros', Buffer.alloc(1000)],
  ['100 000 brackets', '['.repeat(100_000)],
];

export const runCases: Cases = (directory) => {
  const cases: HostileCase[] = [];
  let count = 0;
  const add = (name: string, place: readonly string[], make: (root: string) => void): void => {
    const root = join(directory, `run_${count++}`);
    mkdirSync(join(root, 'global_step_1'), { recursive: true });
    make(root);
    cases.push({ name, place, run: () => new CheckpointStore(root).latest() });
  };
  for (const [name, text] of LATESTS) {
    add(`${LATEST} with ${name}`, [LATEST], (root) => {
      writeFileSync(join(root, 'global_step_1', 'trainer.json'), '{}');
      writeFileSync(join(root, LATEST), text);
    });
  }
  for (const [name, text] of STATES) {
    add(`trainer.json with ${name}`, ['global_step_1'], (root) => {
      writeFileSync(join(root, 'global_step_1', 'trainer.json'), text);
      writeFileSync(join(root, LATEST), '1');
    });
  }
  add('a FIFO as the newest', [LATEST, 'a FIFO'], (root) => execFileSync('mkfifo', [join(root, LATEST)]));
  add('a device as the newest', [LATEST, 'a device'], (root) => symlinkSync('/dev/zero', join(root, LATEST)));
  add('a directory as the newest', [LATEST, 'a directory'], (root) => mkdirSync(join(root, LATEST)));
  add('a FIFO as trainer.json', ['trainer.json', 'a FIFO'], (root) => {
    execFileSync('mkfifo', [join(root, 'global_step_1', 'trainer.json')]);
    writeFileSync(join(root, LATEST), '1');
  });
  return cases;
};
