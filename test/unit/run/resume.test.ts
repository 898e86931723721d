import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FakeEngines, read, runDirectory, trainer } from '../../helpers/fake_run';

// Whole runs over fakes: what a resumed run refuses, says and leaves alone.

const base = [
  'algorithm.use_kl_in_reward=true',
  'algorithm.kl_ctrl.type=adaptive',
  'trainer.total_training_steps=4',
  'trainer.save_freq=2',
];
const LATEST = 'latest_checkpointed_iteration.txt';

/** A run over fakes with what it said. */
async function session(directory: string, overrides: string[] = [], engines = new FakeEngines()) {
  const said: string[] = [];
  const options = { log: (line: string) => void said.push(line) };
  const run = trainer({ directory, overrides: [...base, ...overrides], engines, options });
  const result = await run.trainer.fit();
  return { result, said, updates: engines.updates.length };
}

const steps = (directory: string): string[] =>
  readdirSync(directory)
    .filter((name) => name.startsWith('global_step'))
    .sort();

/** A finished run whose newest checkpoint is that of step 2. */
async function stoppedAtTwo(): Promise<string> {
  const directory = runDirectory();
  await session(directory);
  rmSync(join(directory, 'global_step_4'), { recursive: true });
  writeFileSync(join(directory, LATEST), '2');
  return directory;
}

let whole: { metrics: string };
let prototype: string;
beforeAll(async () => {
  prototype = await stoppedAtTwo();
  whole = { metrics: read(prototype, 'metrics.jsonl') };
});
const copy = (): string => {
  const directory = mkdtempSync(join(tmpdir(), 'resume-'));
  cpSync(prototype, directory, { recursive: true });
  return directory;
};
const editState = (directory: string, edit: (state: Record<string, unknown>) => void): void => {
  const path = join(directory, 'global_step_2/trainer.json');
  const state = JSON.parse(readFileSync(path, 'utf8'));
  edit(state);
  writeFileSync(path, JSON.stringify(state));
};

describe('the newest checkpoint', () => {
  test('of all the steps that a run has: it says how to go on, or to begin anew', async () => {
    const directory = copy();
    expect((await session(directory)).said).toContainEqual(
      expect.stringMatching(/^resuming after step 2 from /),
    );
    const { updates, said } = await session(directory);
    expect(updates).toBe(0);
    expect(said).toContainEqual(
      expect.stringMatching(
        /^nothing to train: .*global_step_4 has all of the 4 steps; more .*, another .* anew$/,
      ),
    );
  });

  test('without the file that names it: that of the last step, and a note', async () => {
    const directory = copy();
    rmSync(join(directory, LATEST));
    const { updates, said } = await session(directory);
    expect(updates).toBe(2);
    expect(said).toContainEqual(
      expect.stringMatching(/^note: .* does not say which checkpoint is the newest: .* step 2/),
    );
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });

  test('without that file, among the checkpoints of several runs: of the run that began last', async () => {
    const directory = copy();
    // The second run saves steps 1 and 3; the first has saved step 2.
    const dying = new FakeEngines();
    dying.onCall = (_, name) => {
      if (name === 'updatePolicy' && dying.updates.length === 2) throw new Error('killed');
    };
    await expect(
      session(directory, ['trainer.resume_mode=disable', 'trainer.save_freq=1'], dying),
    ).rejects.toThrow('killed');
    expect(steps(directory)).toEqual(['global_step_1', 'global_step_2']);
    cpSync(join(prototype, 'global_step_2'), join(directory, 'global_step_3'), { recursive: true });
    rmSync(join(directory, LATEST));
    const { said } = await session(directory);
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 2/));
  });

  test('which the file names and is not there: the one before it, with a warning; without any an error, and logs stay', async () => {
    const directory = copy();
    writeFileSync(join(directory, LATEST), '3');
    const { updates, said } = await session(directory);
    expect(updates).toBe(2);
    expect(said).toContainEqual(
      expect.stringMatching(
        /^note: warning: .*global_step_3, by .* is not there.*; going on from step 2 instead/,
      ),
    );
    for (const name of steps(directory)) rmSync(join(directory, name), { recursive: true });
    const before = read(directory, 'metrics.jsonl');
    await expect(session(directory)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(/global_step_4, by .* is not there: .*resume_mode=disable begins anew/),
    });
    expect(read(directory, 'metrics.jsonl')).toBe(before);
    expect((await session(directory, ['trainer.resume_mode=disable'])).updates).toBe(4);
  });

  test.each([
    ['a directory', (path: string) => mkdirSync(path)],
    ['garbage', (path: string) => writeFileSync(path, 'x'.repeat(500))],
  ])('%s instead of that file is named', async (_, make) => {
    const directory = copy();
    rmSync(join(directory, LATEST));
    make(join(directory, LATEST));
    const failed = session(directory).catch((error: Error) => error);
    expect(await failed).toMatchObject({
      code: 'IO',
      message: expect.stringContaining(join(directory, LATEST)),
    });
    expect(((await failed) as Error).message.length).toBeLessThan(300);
  });
});

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

describe('a checkpoint of version 1', () => {
  const recorded = join(__dirname, '../../fixtures/runs/version_1');
  const old = (): string => {
    const directory = mkdtempSync(join(tmpdir(), 'version-1-'));
    cpSync(recorded, directory, { recursive: true });
    return directory;
  };

  test('is resumed, with the numbers of the run that it is of', async () => {
    const directory = old();
    const { updates } = await session(directory);
    expect(updates).toBe(2);
    expect(read(directory, 'metrics.jsonl')).toBe(read(recorded, 'metrics.jsonl'));
    expect(JSON.parse(read(directory, 'global_step_4/trainer.json')).version).toBe(2);
  });

  test('and what that session saved is resumed again', async () => {
    const directory = old();
    const asked = 'trainer.total_training_steps=';
    await session(directory, [`${asked}3`]);
    await expect(session(directory)).resolves.toMatchObject({ updates: 1 });
    expect(read(directory, 'metrics.jsonl')).toBe(read(recorded, 'metrics.jsonl'));
  });

  test.each<[string, (state: Record<string, unknown>) => void, RegExp]>([
    ['version', (s) => (s['version'] = 3), /version: expected 1 or 2/],
    ['version', (s) => (s['version'] = 2), /expected the checksums of its files/],
    ['step', (s) => (s['step'] = 3), /expected step 2, .* got step 3/],
    ['step', (s) => (s['step'] = 0.5), /step: /],
    ['seed', (s) => (s['seed'] = 'x'), /seed: /],
    ['loader', (s) => (s['loader'] = null), /loader: expected a position/],
    ['klController', (s) => (s['klController'] = { value: -5 }), /klController\.value: .* got -5/],
    ['klController', (s) => (s['klController'] = {}), /klController\.value: /],
    ['config', (s) => (s['config'] = 7), /config: /],
  ])('%s that cannot be: refused', async (_, edit, message) => {
    const directory = old();
    editState(directory, edit);
    await expect(session(directory)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(message),
    });
  });
});

describe('another configuration', () => {
  test('differences are said, and the run goes on', async () => {
    const { said } = await session(copy(), ['actor_rollout_ref.actor.optim.lr=0.5', 'trainer.test_freq=7']);
    expect(said.filter((line) => line.includes('changed'))).toEqual([
      'note: changed since the checkpoint: actor_rollout_ref.actor.optim.lr: 0.000001 -> 0.5',
      'note: changed since the checkpoint: trainer.test_freq: -1 -> 7',
    ]);
  });

  test('a key that there was not, and is null, is no difference', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'older-'));
    cpSync(join(__dirname, '../../fixtures/runs/version_1'), directory, { recursive: true });
    editState(directory, (state) => {
      const { model } = (state['config'] as { actor_rollout_ref: { model: object } }).actor_rollout_ref;
      expect(Reflect.get(model, 'tokenizer_path')).toBeNull();
      Reflect.deleteProperty(model, 'tokenizer_path');
    });
    const { said, updates } = await session(directory);
    expect(updates).toBe(2);
    expect(said.join()).not.toContain('tokenizer_path');
  });

  test('no difference, no line', async () => {
    const { said } = await session(copy());
    expect(said.join()).not.toContain('changed');
  });

  test.each([
    ['actor_rollout_ref.model.path=other', 'actor_rollout_ref.model.path: "none" -> "other"'],
    ['algorithm.adv_estimator=rloo', 'algorithm.adv_estimator: "grpo" -> "rloo"'],
    [
      'data.train_files=[none.jsonl,more.jsonl]',
      'data.train_files: ["none.jsonl"] -> ["none.jsonl","more.jsonl"]',
    ],
    ['actor_rollout_ref.actor.policy_loss.loss_mode=gspo', 'loss_mode: "vanilla" -> "gspo"'],
  ])('%s makes another run of it: refused unless asked for', async (override, says) => {
    const directory = copy();
    await expect(session(directory, [override])).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringContaining(says),
    });
    expect(read(directory, LATEST)).toBe('2');
    const { said } = await session(directory, [override, 'trainer.resume_with_changes=true']);
    expect(said).toContainEqual(expect.stringContaining(`changed since the checkpoint: `));
  });

  test('a model that the run does not use is not asked', async () => {
    await expect(session(copy(), ['critic.model.path=other'])).resolves.toMatchObject({ updates: 2 });
  });

  test('a teacher makes another run of it, and so does its absence', async () => {
    const teacher = 'distillation.teacher_models.teacher_model.model_path';
    const directory = copy();
    const taught = ['distillation.enabled=true', `${teacher}=t`];
    await expect(session(directory, taught)).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      path: 'distillation.enabled',
      message: expect.stringContaining('distillation.enabled: false -> true'),
    });
    const without = copy();
    await session(without, [...taught, 'trainer.resume_with_changes=true', 'trainer.total_training_steps=3']);
    await expect(session(without, [`${teacher}=u`])).rejects.toMatchObject({ path: 'distillation.enabled' });
    await expect(session(without, [...taught, `${teacher}=u`])).rejects.toMatchObject({ path: teacher });
  });

  test('a critic that there was not is named', async () => {
    await expect(session(copy(), ['critic.enable=true'])).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      path: 'critic.enable',
      message: expect.stringContaining('critic.enable: null -> true'),
    });
    await expect(session(copy(), ['critic.enable=false'])).resolves.toMatchObject({ updates: 2 });
  });

  test('a fixed KL coefficient is that of the configuration', async () => {
    const directory = runDirectory();
    const fixed = ['algorithm.kl_ctrl.type=fixed', 'algorithm.kl_ctrl.kl_coef='];
    const short = 'trainer.total_training_steps=2';
    await session(directory, [fixed[0] as string, `${fixed[1]}0.1`, short]);
    await session(directory, [fixed[0] as string, `${fixed[1]}0.3`]);
    const coefficients = read(directory, 'metrics.jsonl').match(/"actor\/reward_kl_penalty_coeff":[^,]+/g);
    expect(coefficients?.map((text) => text.split(':')[1])).toEqual(['0.1', '0.1', '0.3', '0.3']);
  });
});

describe('a directory with an earlier run', () => {
  const keep = ['trainer.max_actor_ckpt_to_keep=2', 'trainer.resume_mode=disable'];

  test('its checkpoints neither count nor are removed', async () => {
    const directory = copy();
    await session(directory, [...keep, 'trainer.save_freq=3', 'trainer.total_training_steps=5']);
    // Of the new run 3 and 5; 2 is of the run before.
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_3', 'global_step_5']);
    await session(directory, [
      'trainer.max_actor_ckpt_to_keep=2',
      'trainer.save_freq=1',
      'trainer.total_training_steps=7',
    ]);
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_6', 'global_step_7']);
  });

  test('a resumed run removes what it saved before it was interrupted', async () => {
    const directory = copy();
    const overrides = ['trainer.max_actor_ckpt_to_keep=1', 'trainer.save_freq=1'];
    await session(directory, overrides);
    expect(steps(directory)).toEqual(['global_step_4']);
  });
});

describe('metrics.jsonl', () => {
  test('a line that was torn is written again from the checkpoint', async () => {
    const directory = copy();
    const lines = whole.metrics.split('\n');
    const two = lines.findIndex((line) => line.startsWith('{"step":2'));
    writeFileSync(
      join(directory, 'metrics.jsonl'),
      [...lines.slice(0, two), lines[two]?.slice(0, 40)].join('\n'),
    );
    await session(directory);
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });

  test('lines that could not be written are in the next checkpoint', async () => {
    const directory = copy();
    const engines = new FakeEngines();
    const log = join(directory, 'metrics.jsonl');
    engines.onCall = (_, name) => {
      if (name !== 'updatePolicy' || existsSync(`${log}.moved`)) return;
      // From here on it cannot be appended to.
      cpSync(log, `${log}.moved`);
      rmSync(log);
      mkdirSync(log);
    };
    const stderr = jest.spyOn(process.stderr, 'write').mockReturnValue(true);
    await session(directory, [], engines);
    const said = stderr.mock.calls.map(([line]) => String(line));
    stderr.mockRestore();
    expect(said).toEqual([
      expect.stringMatching(/metrics\.jsonl failed, its lines wait in memory: EISDIR/),
      expect.stringMatching(/metrics\.jsonl failed, .*its last 2 lines are lost: EISDIR/),
    ]);
    rmSync(log, { recursive: true });
    cpSync(`${log}.moved`, log);
    await session(directory);
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });
});

test('a run directory that is removed while the run writes to it ends the run', async () => {
  for (const again of [false, true]) {
    const directory = runDirectory();
    const engines = new FakeEngines();
    engines.onCall = (_, name) => {
      if (name !== 'updatePolicy' || engines.updates.length !== 1) return;
      rmSync(directory, { recursive: true });
      // Many file systems would give the new one the number of the old.
      if (again) mkdirSync(directory);
    };
    await expect(session(directory, [], engines)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringContaining(`${directory} was removed or replaced`),
    });
  }
});

test('a model that comes from the environment is compared by its value, which is written nowhere', async () => {
  const directory = runDirectory();
  const model = [`actor_rollout_ref.model.path=\${oc.env:TROUPE_TEST_MODEL}`];
  process.env['TROUPE_TEST_MODEL'] = 'one';
  try {
    await session(directory, [...model, 'trainer.total_training_steps=2']);
    process.env['TROUPE_TEST_MODEL'] = 'two';
    await expect(session(directory, model)).rejects.toThrow(/comes from the environment/);
    process.env['TROUPE_TEST_MODEL'] = 'one';
    await expect(session(directory, model)).resolves.toMatchObject({ updates: 2 });
  } finally {
    delete process.env['TROUPE_TEST_MODEL'];
  }
});
