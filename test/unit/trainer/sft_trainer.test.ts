import { mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Batch } from '../../../ts/batch/batch';
import type { ResolvedSftConfig } from '../../../ts/config/config';
import type { SftData } from '../../../ts/trainer/sft_data';
import { type SftEngine, SftTrainer } from '../../../ts/trainer/sft_trainer';
import { CONFORMANCE } from '../../helpers/conformance';
import { trainer } from '../../helpers/fake_run';

const runDirectory = (): string => mkdtempSync(join(tmpdir(), 'sft-'));

/** The keys that the trainer reads when engine and data are given. */
const config = (directory: string, trainer: object = {}): ResolvedSftConfig =>
  ({
    data: { train_batch_size: 2 },
    model: { path: 'model', lora_rank: 0, lora_adapter_path: null, router_z_loss_coef: 0.002 },
    trainer: {
      default_local_dir: directory,
      total_epochs: 2,
      total_training_steps: null,
      save_freq: 2,
      test_freq: 3,
      resume_mode: 'auto',
      seed: 1,
      max_ckpt_to_keep: null,
      logger: [],
      ...trainer,
    },
  }) as unknown as ResolvedSftConfig;

function fakeEngine(
  onUpdate: (count: number) => void = () => {},
): SftEngine & { closed: boolean; seen: number[][]; coefs: Set<number | undefined> } {
  let weights = 1;
  let count = 0;
  const engine = {
    closed: false,
    seen: [] as number[][],
    coefs: new Set<number | undefined>(),
    updateSft: async (batch: Batch, o: { routerZLossCoef?: number } = {}) => {
      onUpdate(++count);
      engine.coefs.add(o.routerZLossCoef);
      engine.seen.push(Array.from(batch.get('responseMask')));
      weights = weights * 0.9 + batch.get('tokens').reduce((a, b) => a + b, 0) * 1e-3;
      const further = { 'actor/mtp_losses/mtp_1_loss': 2 };
      return { 'actor/loss': weights, 'actor/lr': 0.1, ...further, 'perf/mfu/actor': performance.now() };
    },
    computeLogProb: async (batch: Batch) => ({
      logProbs: new Float32Array(batch.numResponseTokens).fill(-weights),
      entropy: null,
      sumPiSquared: null,
    }),
    saveModel: async (dir: string) => {
      mkdirSync(dir, { recursive: true });
      writeFileSync(join(dir, 'config.json'), String(weights));
    },
    saveAdapter: async (dir: string) => engine.saveModel(dir),
    saveCheckpoint: async (dir: string) => engine.saveModel(dir),
    loadCheckpoint: async (dir: string) => {
      weights = Number(readFileSync(join(dir, 'config.json'), 'utf8'));
    },
    close: async () => {
      engine.closed = true;
    },
  };
  return engine;
}

function fakeData(): SftData {
  let position = 0;
  const example = (i: number) => ({
    prompt: Int32Array.of(i + 1),
    response: Int32Array.of(i, i + 2),
    lossMask: Uint8Array.of(0, 1),
  });
  return {
    train: {
      batchesPerEpoch: 3,
      next: async () => {
        const at = position++;
        return { examples: [example(at), example(at + 50)], epoch: Math.floor(at / 3) };
      },
      state: () => position,
      restore: (state) => {
        position = state as number;
      },
    },
    validation: [example(7), example(8), example(9)],
  };
}

const runSft = (directory: string, engine: SftEngine, trainer: object = {}) =>
  new SftTrainer(config(directory, trainer), {
    engine: async () => engine,
    data: async () => fakeData(),
  }).fit();

test('trains all epochs, validates, saves the model', async () => {
  const directory = runDirectory();
  const engine = fakeEngine();
  const result = await runSft(directory, engine);
  expect(result).toMatchObject({ step: 6, interrupted: false, finalModel: join(directory, 'final_model') });
  expect(engine.seen[0]).toEqual([0, 1, 0, 1]);
  expect([...engine.coefs]).toEqual([0.002]);
  expect(engine.closed).toBe(true);
  const lines = readFileSync(join(directory, 'metrics.jsonl'), 'utf8').trim().split('\n');
  expect(lines).toHaveLength(6);
  expect(lines[2]).toMatch(/"train\/loss".*"val\/loss"/);
  expect(lines[1]).not.toMatch(/val\/loss|perf\/|actor\//);
  expect(lines[1]).toMatch(/"train\/mtp_losses\/mtp_1_loss":2/);
});

test('after_each_epoch is a pass over the data', async () => {
  const directory = runDirectory();
  await runSft(directory, fakeEngine(), { save_freq: 'after_each_epoch', test_freq: 'after_each_epoch' });
  const steps = readFileSync(join(directory, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => /"val\/loss"/.test(line));
  expect(steps).toEqual([false, false, true, false, false, true]);
  expect(
    readdirSync(directory)
      .filter((name) => name.startsWith('global_step_'))
      .sort(),
  ).toEqual(['global_step_3', 'global_step_6']);
});

test('killed and resumed equals uninterrupted', async () => {
  const whole = runDirectory();
  await runSft(whole, fakeEngine());
  const directory = runDirectory();
  const dying = fakeEngine((count) => {
    if (count === 4) throw new Error('killed');
  });
  await expect(runSft(directory, dying)).rejects.toThrow('killed');
  expect(dying.closed).toBe(true);
  await runSft(directory, fakeEngine());
  for (const file of ['metrics.jsonl', 'final_model/config.json']) {
    expect(readFileSync(join(directory, file), 'utf8')).toBe(readFileSync(join(whole, file), 'utf8'));
  }
});

test('tells the tokens of a step and of the run, in billions, over a restart too', async () => {
  const tokens = (directory: string): unknown[] =>
    readFileSync(join(directory, 'metrics.jsonl'), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
      .map((line) => [line['train/global_tokens'], line['train/total_tokens(B)']]);
  const directory = runDirectory();
  const dying = fakeEngine((count) => {
    if (count === 4) throw new Error('killed');
  });
  await expect(runSft(directory, dying)).rejects.toThrow('killed');
  await runSft(directory, fakeEngine());
  // Two examples of three tokens, those of the prompts among them.
  expect(tokens(directory)).toEqual([1, 2, 3, 4, 5, 6].map((step) => [6, (6 * step) / 1e9]));
  // A checkpoint that was made before they were counted.
  const older = runDirectory();
  await runSft(older, fakeEngine(), { total_training_steps: 2 });
  const file = join(older, 'global_step_2', 'trainer.json');
  const { step, seed, loader, config: written, tokens: counted } = JSON.parse(readFileSync(file, 'utf8'));
  expect(counted).toBe(12);
  writeFileSync(file, JSON.stringify({ version: 1, step, seed, loader, config: written }));
  await runSft(older, fakeEngine(), { total_training_steps: 3 });
  expect(tokens(older)[2]).toEqual([6, 6 / 1e9]);
});

test('a stop request before the first step has nothing to save', async () => {
  const stopped = new SftTrainer(config(runDirectory()), {
    engine: async () => fakeEngine(),
    data: async () => {
      expect(stopped.requestStop('SIGINT')).toBe(false);
      return fakeData();
    },
  });
  expect(await stopped.fit()).toMatchObject({ step: 0, interrupted: true });
});

test('a stop request saves after the step', async () => {
  const directory = runDirectory();
  const engine = fakeEngine((count) => {
    if (count === 3) expect(stopped.requestStop('SIGINT')).toBe(true);
  });
  const stopped = new SftTrainer(config(directory), {
    engine: async () => engine,
    data: async () => fakeData(),
  });
  expect(await stopped.fit()).toMatchObject({ step: 3, interrupted: true, finalModel: null });
  expect(readFileSync(join(directory, 'latest_checkpointed_iteration.txt'), 'utf8')).toBe('3');
});

test('another seed is refused; disable starts over for good', async () => {
  const directory = runDirectory();
  await runSft(directory, fakeEngine());
  await expect(runSft(directory, fakeEngine(), { seed: 5 })).rejects.toThrow(
    /trainer\.seed: the checkpoint .*global_step_6 was made with seed 1 but the configuration has 5/,
  );
  const dying = fakeEngine(() => {
    throw new Error('killed');
  });
  await expect(runSft(directory, dying, { resume_mode: 'disable', seed: 5 })).rejects.toThrow('killed');
  expect(readFileSync(join(directory, 'latest_checkpointed_iteration.txt'), 'utf8')).toBe('0');
  expect(await runSft(directory, fakeEngine(), { seed: 5 })).toMatchObject({ step: 6 });
});

test('a checkpoint of the other program is refused', async () => {
  const directory = runDirectory();
  await runSft(directory, fakeEngine());
  const reinforcement = trainer({ directory });
  await expect(reinforcement.trainer.fit()).rejects.toThrow(/global_step_6 was made by troupe sft/);

  const other = trainer({ overrides: ['trainer.save_freq=1', 'trainer.total_training_steps=1'] });
  await other.trainer.fit();
  await expect(runSft(other.directory, fakeEngine())).rejects.toThrow(/made by troupe train/);
});

test('so is a state of the other program that is held in memory', async () => {
  const directory = runDirectory();
  const held = mkdtempSync(join(tmpdir(), 'memory-'));
  const dying = fakeEngine((count) => {
    if (count === 2) throw new Error('killed');
  });
  const checkpoint_staging = { async: false, every_step: true, directory: held };
  await expect(runSft(directory, dying, { checkpoint_staging })).rejects.toThrow('killed');
  await expect(trainer({ directory }).trainer.fit()).rejects.toThrow(
    /memory-.*global_step_1 was made by troupe sft/,
  );
});

test('the z-loss needs a model with experts', async () => {
  const given = config(runDirectory());
  const path = join(CONFORMANCE, 'models', 'qwen2_tied', 'actor');
  const options = { engine: async () => fakeEngine(), data: async () => fakeData() };
  const run = new SftTrainer({ ...given, model: { ...given.model, path } }, options).fit();
  await expect(run).rejects.toThrow(/^model\.router_z_loss_coef: the model in .* has no experts/);
});
