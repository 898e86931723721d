// Whole runs over fakes, resumed from checkpoints that are not what was saved.
import { appendFileSync, cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { read, runDirectory } from '../../helpers/fake_run';
import { editState, session, steps, stoppedAtTwo } from './resumed_run';

const { copy, whole } = stoppedAtTwo();

describe('damage', () => {
  test.each(['global_step_2/actor/weights', 'global_step_2/trainer.json'])(
    'one flipped bit in %s',
    async (name) => {
      const directory = copy();
      const bytes = readFileSync(join(directory, name));
      const at = name.endsWith('.json') ? bytes.indexOf('"seed": 1') + 8 : 3;
      (bytes as Buffer)[at] = (bytes[at] as number) ^ 1;
      writeFileSync(join(directory, name), bytes);
      await expect(session(directory)).rejects.toMatchObject({
        code: 'IO',
        message: expect.stringMatching(
          /global_step_2\/(actor\/weights is not what was saved|trainer.json is damaged).* checksum/,
        ),
      });
    },
  );

  test('files of another step, longer files, and files that are not there', async () => {
    const directory = runDirectory();
    await session(directory);
    const from = ['trainer.resume_mode=resume_path', `trainer.resume_from_path=${directory}/global_step_4`];
    const weights = (step: number): string => join(directory, `global_step_${step}/actor/weights`);
    const original = readFileSync(weights(4));
    cpSync(weights(2), weights(4));
    await expect(session(directory, from)).rejects.toThrow(
      /global_step_4\/actor\/weights is not what was saved/,
    );
    writeFileSync(weights(4), original);
    appendFileSync(weights(4), '0');
    await expect(session(directory, from)).rejects.toThrow(/expected \d+ bytes, but it has \d+/);
    rmSync(weights(4));
    await expect(session(directory, from)).rejects.toThrow(/it is missing/);
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_4']);
  });

  test.each(['actor/weights', 'trainer.json'])(
    'a flipped bit in %s of the newest: the one before it serves, with a warning, to the same numbers',
    async (name) => {
      const directory = runDirectory();
      await session(directory);
      const path = join(directory, 'global_step_4', name);
      const bytes = readFileSync(path) as Buffer;
      const at = name.endsWith('.json') ? bytes.indexOf('"seed": 1') + 8 : 3;
      bytes[at] = (bytes[at] as number) ^ 1;
      writeFileSync(path, bytes);
      const { said, result } = await session(directory);
      expect(result.step).toBe(4);
      expect(said.join('\n')).toMatch(
        /warning: \[checkpoint\] .*global_step_4\/(actor\/weights is not what was saved|trainer\.json is damaged)[^\n]*going on from step 2 instead/,
      );
      expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
      expect((await session(directory)).said.join('\n')).not.toMatch(/warning/);
    },
  );

  test('a checkpoint of a run before this one is no substitute', async () => {
    const directory = runDirectory();
    await session(directory);
    await session(directory, ['trainer.resume_mode=disable', 'trainer.save_freq=4']);
    appendFileSync(join(directory, 'global_step_4/actor/weights'), '0');
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_4']);
    await expect(session(directory)).rejects.toThrow(/global_step_4\/actor\/weights is not what was saved/);
  });

  test.each<[string, (state: Record<string, unknown>) => void]>([
    ['loader', (state) => (state['loader'] = { position: 1 })],
    ['run', (state) => (state['run'] = 5)],
    ['its checksum gone', (state) => delete state['checksum']],
  ])('trainer.json changed by hand: %s', async (_, edit) => {
    const directory = copy();
    editState(directory, edit);
    await expect(session(directory)).rejects.toThrow(/trainer\.json is damaged \(expected the checksum/);
  });
});
