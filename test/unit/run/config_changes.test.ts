// Whole runs over fakes, resumed with another configuration.
import { cpSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { read, runDirectory } from '../../helpers/fake_run';
import { editState, LATEST, session, stoppedAtTwo } from './resumed_run';

const { copy } = stoppedAtTwo();

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

  test('keys that an older version did not have are told where they say anything but their defaults', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'older-'));
    cpSync(join(__dirname, '../../fixtures/runs/version_1'), directory, { recursive: true });
    const optim = 'actor_rollout_ref.actor.optim';
    const asked = [`${optim}.optimizer=muon`, `${optim}.num_cycles=0.5`, `${optim}.weight_decay=0.3`];
    editState(directory, (state) => {
      const { actor } = (state['config'] as { actor_rollout_ref: { actor: { optim: object } } })
        .actor_rollout_ref;
      expect(Object.keys(actor.optim)).not.toContain('num_cycles');
      expect(Reflect.deleteProperty(actor.optim, 'weight_decay')).toBe(true);
    });
    const { said } = await session(directory, asked);
    expect(said.filter((line) => line.includes(optim))).toEqual(
      ['weight_decay: not there -> 0.3', 'optimizer: not there -> "muon"'].map(
        (change) => `note: changed since the checkpoint: ${optim}.${change}`,
      ),
    );
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
