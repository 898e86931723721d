// What names, overrides, anchors and references become.
import { describeConfig, loadConfig } from '../../../ts/config/config';
import { failure, load, MINIMAL, reference, writeConfig } from './write_config';

describe('a name may look like a number', () => {
  const names = ({ trainer, logging }: ReturnType<typeof load>) => [
    trainer.project_name,
    trainer.experiment_name,
    logging.wandb.project,
    trainer.default_local_dir,
  ];

  it('in a file: it stays as it is spelled', () => {
    const text = `${MINIMAL}
trainer: { project_name: 20240501, experiment_name: 1.0 }
logging: { wandb: { project: 0x1F } }
`;
    expect(names(load([], text))).toEqual(['20240501', '1.0', '0x1F', 'checkpoints/20240501/1.0']);
  });

  it('on the command line, in a section and by reference', () => {
    expect(
      names(
        load([
          'trainer.project_name=20240501_1',
          'trainer={experiment_name:2024}',
          `logging.wandb.project=${reference('trainer.seed')}`,
          'trainer.seed=7',
        ]),
      ),
    ).toEqual(['20240501_1', '2024', '7', 'checkpoints/20240501_1/2024']);
  });

  it('and must be one', () => {
    expect(failure(['trainer.project_name=true']).message).toMatch(
      /project_name: expected a name .*, got true/,
    );
    expect(failure(['trainer.project_name=']).message).toMatch(/project_name: expected a name .*, got ""/);
    expect(failure(['logging.wandb.entity=true']).message).toMatch(
      /entity: expected a string, or null, got true/,
    );
  });
});

describe('overrides', () => {
  it.each([
    [
      'actor_rollout_ref.actor.optim.lr=1e-4',
      (c: ReturnType<typeof load>) => c.actor_rollout_ref.actor.optim.lr,
      1e-4,
    ],
    ['+trainer.seed=7', (c: ReturnType<typeof load>) => c.trainer.seed, 7],
    ['++trainer.seed=7', (c: ReturnType<typeof load>) => c.trainer.seed, 7],
    [
      'trainer.logger=["console","file"]',
      (c: ReturnType<typeof load>) => c.trainer.logger,
      ['console', 'file'],
    ],
    ["trainer.experiment_name='7'", (c: ReturnType<typeof load>) => c.trainer.experiment_name, '7'],
    [
      'data.val_files=[a.parquet,b.parquet]',
      (c: ReturnType<typeof load>) => c.data.val_files,
      ['a.parquet', 'b.parquet'],
    ],
    ['trainer.val_before_train=False', (c: ReturnType<typeof load>) => c.trainer.val_before_train, false],
    ['data.val_batch_size=', (c: ReturnType<typeof load>) => c.data.val_batch_size, null],
    ['trainer.default_local_dir=a=b', (c: ReturnType<typeof load>) => c.trainer.default_local_dir, 'a=b'],
  ])('%s', (override, read, expected) => {
    expect(read(load([override]))).toEqual(expected);
  });

  it('of what is not a section say so', () => {
    expect(failure(['data.train_files.first=1']).message).toMatch(
      /data\.train_files is "train\.jsonl", not a section/,
    );
  });

  it.each(['trainer.seed', '=1', 'a..b=1', '.a=1', '~trainer.seed'])('%s is refused', (override) => {
    expect(failure([override]).message).toContain(`override '${override}'`);
  });
});

describe('anchors', () => {
  const text = `
data: { train_files: a.jsonl, <<: { max_prompt_length: 7, seed: 3 }, seed: 9 }
actor_rollout_ref:
  model: { path: model }
  actor: { optim: &optim { lr: 1e-5, betas: [0.9, 0.95] } }
critic: { optim: *optim }
`;
  const optims = (overrides: string[], given = text) => {
    const { actor_rollout_ref: roles, critic } = load(overrides, given);
    return [roles.actor.optim, critic.optim];
  };

  it('give each of their places a copy of its own, which an override changes alone', () => {
    expect(optims([])).toMatchObject([{ lr: 1e-5 }, { lr: 1e-5 }]);
    const both = [{ lr: 1e-5 }, { lr: 7, betas: [0.9, 0.95] }];
    expect(optims(['critic.optim.lr=7'])).toMatchObject(both);
    expect(optims(['critic.optim={lr:7}'])).toMatchObject(both);
    expect(optims(['~actor_rollout_ref.actor.optim.betas'])).toMatchObject([
      { betas: [0.9, 0.999] },
      { betas: [0.9, 0.95] },
    ]);
  });

  it('are merged by <<, where the section does not say otherwise', () => {
    expect(load([], text).data).toMatchObject({ max_prompt_length: 7, seed: 9 });
    const merged = text.replace('optim: *optim', 'optim: { <<: *optim, lr: 2e-5 }');
    expect(optims([], merged)).toMatchObject([
      { lr: 1e-5, betas: [0.9, 0.95] },
      { lr: 2e-5, betas: [0.9, 0.95] },
    ]);
    expect(optims(['critic.optim.lr=3'], merged)).toMatchObject([{ lr: 1e-5 }, { lr: 3 }]);
    const named = load([], `${text}trainer: { <<: { project_name: 007 } }\n`);
    expect(named.trainer.project_name).toBe('007');
    expect(failure([], 'data: { <<: 5 }').message).toMatch(/run\.yaml:1:\d+: not valid YAML/);
  });
});

// What OmegaConf (2.3) makes of it, whose texts are Python's.
it.each([
  ['actor_rollout_ref.actor.optim.lr', '1e-6', 'x1e-06y'],
  ['actor_rollout_ref.actor.optim.lr', '0.00025', 'x0.00025y'],
  ['trainer.val_only', 'true', 'xTruey'],
  ['trainer.val_only', 'FALSE', 'xFalsey'],
  ['trainer.total_training_steps', 'null', 'xNoney'],
  ['trainer.total_training_steps', '20', 'x20y'],
  ['algorithm.adv_estimator', 'grpo', 'xgrpoy'],
])('%s=%s within a text', (key, value, expected) => {
  const { trainer } = load([
    `${key}=${value}`,
    'data.val_files=x',
    `trainer.experiment_name=x${reference(key)}y`,
  ]);
  expect(trainer.experiment_name).toBe(expected);
});

describe('a reference after a backslash', () => {
  const dir = (text: string) => `trainer.default_local_dir='${text}'`;

  // As OmegaConf has it: only backslashes before a ${ count.
  it.each([
    [`x\\${reference('a')}`, `x${reference('a')}`],
    [`\\${reference('a')}`, reference('a')],
    [`x\\\\${reference('trainer.seed')}`, 'x\\7'],
    [`x\\\\\\${reference('a')}`, `x\\${reference('a')}`],
    [`\\${reference('a')}/${reference('trainer.seed')}\\d`, `${reference('a')}/7\\d`],
    ['x\\d{2}', 'x\\d{2}'],
  ])('is text: %s', (text, expected) => {
    const file = `${MINIMAL}trainer: { seed: 7, default_local_dir: '${text}' }`;
    const config = load([], file);
    expect(config.trainer.default_local_dir).toBe(expected);
    // What is written of it says the same when it is read.
    expect(loadConfig(writeConfig(describeConfig(config))).trainer.default_local_dir).toBe(expected);
  });

  it('that another key refers to is text there, too', () => {
    const config = load([
      dir(`\\${reference('a')}`),
      `trainer.experiment_name=${reference('trainer.default_local_dir')}`,
    ]);
    expect(config.trainer.experiment_name).toBe(reference('a'));
    expect(loadConfig(writeConfig(describeConfig(config))).trainer.experiment_name).toBe(reference('a'));
  });
});
