// What a run asks of its engines, and when, where prompts are worked on ahead.
import { FakeEngines, steps, trainer } from '../../helpers/fake_run';
import { settle } from './told_rollout';

describe('steps and the engine', () => {
  const once = ['trainer.total_training_steps=2', 'trainer.val_before_train=false', 'trainer.test_freq=-1'];

  /** Calls in order, those of the rollout's pauses among them. */
  async function calls(overrides: string[], apart: boolean): Promise<string[]> {
    const engines = new FakeEngines();
    engines.apart = apart;
    const run = trainer({
      overrides: [...once, ...overrides],
      engines,
      options: {
        engines: async (_, needs) => {
          const made = await engines.create(needs);
          made.rollout.pause = async (mode) => {
            engines.calls.push(`pause ${mode}`);
          };
          made.rollout.resume = async () => {
            engines.calls.push('resume');
          };
          return made;
        },
      },
    });
    await run.trainer.fit();
    for (const line of steps(run.directory)) expect(line['training/off_policy/trajectory_spans/max']).toBe(1);
    return engines.calls.filter((call) => !/^(save|close|generate)/.test(call));
  }

  test('colocated: responses stand still, and give their memory back, from the first forward pass to the update', async () => {
    expect(await calls(['trainer.v1.trainer_mode=colocate_async'], false)).toEqual(
      [1, 2].flatMap(() => ['pause preempt', 'actor.computeLogProb', 'updatePolicy', 'resume']),
    );
  });

  test('a run that is to stop does not wait for prompts that take long', async () => {
    let [asked, give] = [() => {}, () => {}];
    const waiting = new Promise<void>((done) => {
      asked = done;
    });
    const late = new Promise<number>((done) => {
      give = () => done(1);
    });
    const run = trainer({
      overrides: ['trainer.v1.trainer_mode=colocate_async', 'trainer.val_before_train=false'],
      options: {
        reward: () => {
          asked();
          return late;
        },
      },
    });
    const fitting = run.trainer.fit();
    await waiting;
    run.trainer.requestStop('the test');
    expect(await fitting).toMatchObject({ step: 0, interrupted: true });
    give();
    await run.trainer.settled();
  });

  test('a run that has failed is settled when rewards of what was ahead have come', async () => {
    let give: () => void = () => undefined;
    const late = new Promise<number>((done) => {
      give = () => done(1);
    });
    let scored = 0;
    const engines = new FakeEngines();
    engines.onCall = (_, name) => {
      if (name === 'updatePolicy') throw new Error('no update');
    };
    const run = trainer({
      overrides: ['trainer.v1.trainer_mode=colocate_async', 'trainer.val_before_train=false'],
      engines,
      options: { reward: ({ response }) => (scored++ < 8 ? response.length : late) },
    });
    await expect(run.trainer.fit()).rejects.toThrow('no update');
    expect(scored).toBeGreaterThan(8);
    let settled = false;
    const waiting = run.trainer.settled().then(() => {
      settled = true;
    });
    await settle();
    expect(settled).toBe(false);
    give();
    await waiting;
  });

  test('colocated: what is known of tokens after the update is computed before responses go on', async () => {
    const tokens = 'logging.tokens={samples: 2, every: 1, after_update: true}';
    expect(await calls(['trainer.v1.trainer_mode=colocate_async', tokens], false)).toEqual(
      [1, 2].flatMap(() => [
        'pause preempt',
        'actor.computeLogProb',
        'updatePolicy',
        'actor.computeLogProb',
        'resume',
      ]),
    );
  });

  test('separate: they never do; servers are given the weights of each step, and do not rest', async () => {
    const apart = [
      'trainer.v1.trainer_mode=separate_async',
      'actor_rollout_ref.rollout.name=vllm',
      'actor_rollout_ref.rollout.mode=managed',
    ];
    expect(await calls(apart, true)).toEqual([
      'syncRollout',
      ...[1, 2].flatMap(() => ['actor.computeLogProb', 'updatePolicy', 'syncRollout']),
    ]);
  });
});
