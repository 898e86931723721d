// Everything in `trainer` that decides when something happens, and what of earlier runs stays, over fakes.
import { existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  checkpoints,
  lines,
  rareReward,
  runConfig,
  runDirectory,
  steps,
  trainer,
} from '../../helpers/fake_run';

describe('when a run ends, validates and saves', () => {
  test('total_epochs counts passes over the prompts; total_training_steps overrides it', async () => {
    const byEpochs = trainer({ overrides: ['trainer.total_epochs=3'] });
    await expect(byEpochs.trainer.fit()).resolves.toMatchObject({ step: 9 });
    expect(steps(byEpochs.directory).map((line) => line['training/epoch'])).toEqual([
      0, 0, 0, 1, 1, 1, 2, 2, 2,
    ]);
    for (const total of [1, 8]) {
      const overrides = ['trainer.total_epochs=2', `trainer.total_training_steps=${total}`];
      await expect(trainer({ overrides }).trainer.fit()).resolves.toMatchObject({ step: total });
    }
  });

  test.each([
    [
      ['trainer.save_freq=2', 'trainer.test_freq=3'],
      [2, 4, 5],
      [0, 3, 5],
    ],
    [['trainer.save_freq=-1', 'trainer.test_freq=-1'], [], [0]],
    [['trainer.save_freq=10', 'trainer.val_before_train=false', 'trainer.test_freq=10'], [5], [5]],
  ])('%j', async (overrides, saved, validated) => {
    const run = trainer({ overrides: [...overrides, 'trainer.total_training_steps=5'] });
    await run.trainer.fit();
    expect(checkpoints(run.directory)).toEqual(saved.map((step) => `global_step_${step}`));
    const found = lines(run.directory).flatMap((line) =>
      'val-core/fake/acc/mean@1' in line ? [line['step']] : [],
    );
    expect(found).toEqual(validated);
  });

  test('critic_warmup: the steps before it update the critic only', async () => {
    const overrides = [
      'algorithm.adv_estimator=gae',
      'trainer.total_training_steps=4',
      'trainer.critic_warmup=3',
    ];
    const run = trainer({ overrides });
    await run.trainer.fit();
    expect(steps(run.directory).map((line) => 'actor/pg_loss' in line)).toEqual([false, false, true, true]);
    expect(steps(run.directory).every((line) => 'critic/vf_loss' in line)).toBe(true);
  });

  test('dumps: all generations of every step, and of every validation', async () => {
    const dump = runDirectory();
    const overrides = [
      `trainer.rollout_data_dir=${join(dump, 'rollout')}`,
      `trainer.validation_data_dir=${join(dump, 'validation')}`,
      'trainer.total_training_steps=2',
      'trainer.test_freq=2',
    ];
    await trainer({ overrides, options: { reward: rareReward } }).trainer.fit();
    expect(readdirSync(join(dump, 'rollout')).sort()).toEqual(['1.jsonl', '2.jsonl']);
    expect(readdirSync(join(dump, 'validation')).sort()).toEqual(['0.jsonl', '2.jsonl']);
    const rows = lines(dump, 'rollout/2.jsonl');
    expect(rows).toHaveLength(8);
    expect(Object.keys(rows[0]!)).toEqual(['step', 'input', 'output', 'gts', 'score', 'acc', 'length']);
    expect(lines(dump, 'validation/0.jsonl')).toHaveLength(3);
  });

  test('val_only after training validates the checkpoint', async () => {
    const overrides = ['trainer.total_training_steps=2', 'trainer.save_freq=2'];
    const first = trainer({ overrides });
    await first.trainer.fit();
    const again = trainer({
      directory: first.directory,
      overrides: [...overrides, 'trainer.val_only=true'],
    });
    await expect(again.trainer.fit()).resolves.toMatchObject({ step: 2, finalModel: null });
    expect(again.engines.weights).toBe(first.engines.weights);
    expect(again.engines.calls).toEqual(['generate', 'close']);
  });
});

describe('what is deleted', () => {
  const keep = ['trainer.save_freq=1', 'trainer.max_actor_ckpt_to_keep=2', 'trainer.val_before_train=false'];

  test('all but the newest checkpoints, and nothing else', async () => {
    const directory = runDirectory();
    const elsewhere = runDirectory();
    writeFileSync(join(elsewhere, 'precious'), '');
    writeFileSync(join(directory, 'global_step_notes.txt'), '');
    mkdirSync(join(directory, 'global_step_1_backup'));
    symlinkSync(elsewhere, join(directory, 'linked'));
    const run = trainer({ directory, overrides: [...keep, 'trainer.total_training_steps=4'] });
    await run.trainer.fit();
    expect(checkpoints(directory)).toEqual([
      'global_step_1_backup',
      'global_step_3',
      'global_step_4',
      'global_step_notes.txt',
    ]);
    expect(existsSync(join(elsewhere, 'precious'))).toBe(true);
  });

  test('resuming from a path leaves the other run as it is', async () => {
    const first = trainer({ overrides: [...keep, 'trainer.total_training_steps=2'] });
    await first.trainer.fit();
    const from = join(first.directory, 'global_step_1');
    const overrides = [
      ...keep,
      'trainer.total_training_steps=4',
      'trainer.resume_mode=resume_path',
      `trainer.resume_from_path=${from}`,
    ];
    const second = trainer({ overrides });
    await second.trainer.fit();
    expect(checkpoints(first.directory)).toEqual(['global_step_1', 'global_step_2']);
    expect(checkpoints(second.directory)).toEqual(['global_step_3', 'global_step_4']);
  });

  test('a checkpoint directory that something else wrote stops the run before it starts', async () => {
    const directory = runDirectory();
    mkdirSync(join(directory, 'global_step_2'));
    writeFileSync(join(directory, 'global_step_2', 'model_world_size_1_rank_0.pt'), '');
    const run = trainer({ directory, overrides: keep });
    await expect(run.trainer.fit()).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(/global_step_2 is not a checkpoint of Troupe .* move it away/),
    });
    expect(run.engines.calls).toEqual([]);
    expect(readdirSync(join(directory, 'global_step_2'))).toEqual(['model_world_size_1_rank_0.pt']);
  });

  test('a checkpoint reached by a link: the link goes, what it points to stays', async () => {
    const first = trainer({ overrides: [...keep, 'trainer.total_training_steps=1'] });
    await first.trainer.fit();
    const directory = runDirectory();
    symlinkSync(join(first.directory, 'global_step_1'), join(directory, 'global_step_1'));
    const second = trainer({ directory, overrides: [...keep, 'trainer.total_training_steps=3'] });
    await second.trainer.fit();
    expect(checkpoints(directory)).toEqual(['global_step_2', 'global_step_3']);
    expect(existsSync(join(first.directory, 'global_step_1', 'actor', 'weights'))).toBe(true);
  });
});

describe('resume_mode', () => {
  test('auto starts from nothing where there is nothing', async () => {
    await expect(
      trainer({ overrides: ['trainer.total_training_steps=1'] }).trainer.fit(),
    ).resolves.toMatchObject({ step: 1 });
  });

  test.each([
    [['trainer.resume_mode=resume_path'], /resume_from_path: expected a checkpoint directory/],
    [
      ['trainer.resume_from_path=x/global_step_1'],
      /resume_from_path: is given, but trainer\.resume_mode is auto/,
    ],
  ])('%j is refused', (overrides, message) => {
    expect(() => runConfig('x', overrides)).toThrow(message);
  });

  test('a path that holds no checkpoint is named', async () => {
    const overrides = ['trainer.resume_mode=resume_path', 'trainer.resume_from_path=nowhere/global_step_7'];
    const run = trainer({ overrides });
    await expect(run.trainer.fit()).rejects.toThrow(/nowhere\/global_step_7 is not a checkpoint/);
    expect(run.engines.calls).toEqual([]);
  });
});
