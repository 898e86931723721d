import fs, {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Actor } from '../../../ts/actor/actor';
import type { ResolvedConfig } from '../../../ts/config/config';
import { RunClaim } from '../../../ts/run/run_claim';
import { RolloutWeights } from '../../../ts/trainer/rollout_weights';
import { ServerRollout } from '../../../ts/trainer/server_rollout';
import { Session } from '../../../ts/trainer/session';
import { runConfig } from '../../helpers/fake_run';

const SERVERS = [
  'actor_rollout_ref.rollout.name=vllm',
  'actor_rollout_ref.rollout.mode=server',
  'actor_rollout_ref.rollout.server.addresses=[http://127.0.0.1:9]',
];

const actor = {
  saveModel: async (directory: string): Promise<void> => {
    mkdirSync(directory);
    writeFileSync(join(directory, 'config.json'), '{}');
  },
};

/** Of somebody else. */
const OTHERS = ['notes', 'version_57_best'];

/** What a run that was killed at version 57, while it wrote 58, has left, beside something of another's. */
function left(): string {
  const directory = mkdtempSync(join(tmpdir(), 'rollout-weights-'));
  for (const name of ['version_57', '.incomplete_version_58_0a1b2c', ...OTHERS]) {
    mkdirSync(join(directory, name));
    writeFileSync(join(directory, name, 'model.safetensors'), 'x');
  }
  return directory;
}

const weightsIn = (directory: string, owned: boolean): { weights: RolloutWeights; said: string[] } => {
  const said: string[] = [];
  const say = (line: string): void => void said.push(line);
  return { weights: new RolloutWeights(actor, directory, { owned, untied: false }, say), said };
};

test('what a killed run has left in the directory of the run goes when the next one starts', async () => {
  const directory = left();
  const { weights, said } = weightsIn(directory, true);
  weights.clear();
  expect(readdirSync(directory)).toEqual(OTHERS);
  weights.keepOnly(await weights.write(3));
  expect(readdirSync(directory)).toEqual(['notes', 'version_3', 'version_57_best']);
  weights.remove();
  expect(readdirSync(directory)).toEqual(OTHERS);
  expect(said).toEqual([]);
});

test('in a directory that others may use nothing goes but its own', async () => {
  const directory = left();
  const before = readdirSync(directory);
  const { weights } = weightsIn(directory, false);
  weights.clear();
  const first = await weights.write(1);
  weights.keepOnly(await weights.write(2));
  expect(existsSync(first)).toBe(false);
  expect(readdirSync(directory)).toEqual([...before, 'version_2'].sort());
  weights.remove();
  expect(readdirSync(directory)).toEqual(before);
});

test('there is nothing to clear before the first run', async () => {
  const directory = join(mkdtempSync(join(tmpdir(), 'rollout-weights-')), 'rollout_weights');
  const { weights, said } = weightsIn(directory, true);
  weights.clear();
  await weights.write(0);
  weights.remove();
  expect([existsSync(directory), said]).toEqual([false, []]);
});

test.each([
  [true, OTHERS],
  [false, ['.incomplete_version_58_0a1b2c', 'notes', 'version_57', 'version_57_best']],
])('a start, in the directory of the run (%s), with servers that do not answer', async (owned, stays) => {
  const [run, directory] = [mkdtempSync(join(tmpdir(), 'run-')), left()];
  const own = join(run, 'rollout_weights');
  if (owned) renameSync(directory, own);
  const config = runConfig(run, [
    ...SERVERS,
    'actor_rollout_ref.rollout.server.recovery_timeout=0.2',
    ...(owned ? [] : [`actor_rollout_ref.rollout.server.weights_dir=${directory}`]),
  ]);
  const model = {
    config: { vocabSize: 8, maxPositions: 16, tiedEmbeddings: false },
    // Their first weights are written, and nobody has taken them.
    ownHead: true,
    stored: new Map(),
  };
  const fake = { ...actor, engine: { model }, eosTokenIds: [0] } as unknown as Actor;
  const start = ServerRollout.start(config, fake, { dtype: 'float32', device: 'cpu' }, () => undefined);
  await expect(start).rejects.toMatchObject({ code: 'COMM' });
  expect(readdirSync(owned ? own : directory)).toEqual(stays);
});

describe('a session without servers', () => {
  const session = async (config: ResolvedConfig): Promise<string[]> => {
    const said: string[] = [];
    await Session.during(
      config,
      null,
      (line) => said.push(line),
      async (open) => {
        const directory = open.prepareDirectory();
        await open.begin(directory, 1, config.trainer.val_only).close('finished');
      },
    );
    return said;
  };
  /** A run directory with what was left in it. */
  const leftInRun = (): { run: string; own: string } => {
    const run = mkdtempSync(join(tmpdir(), 'run-'));
    const own = join(run, 'rollout_weights');
    renameSync(left(), own);
    return { run, own };
  };

  test('removes what an earlier one with servers has left, and nothing of others', async () => {
    const { run, own } = leftInRun();
    const weightsDir = left();
    expect(await session(runConfig(run, []))).toEqual([]);
    expect(readdirSync(own)).toEqual(OTHERS);
    for (const name of OTHERS) rmSync(join(own, name), { recursive: true });
    mkdirSync(join(own, 'version_3'));
    const elsewhere = [...SERVERS, `actor_rollout_ref.rollout.server.weights_dir=${weightsDir}`];
    await session(runConfig(run, elsewhere));
    expect([existsSync(own), readdirSync(weightsDir).length]).toEqual([false, 4]);
  });

  test.each<[string, (run: string, own: string) => string[]]>([
    ['the servers of the session read them', () => SERVERS],
    [
      'they read them under another name',
      (run, own) => {
        symlinkSync(own, join(run, 'link'));
        return [...SERVERS, `actor_rollout_ref.rollout.server.weights_dir=${join(run, 'link')}`];
      },
    ],
    [
      'they are behind a link of the user',
      (run, own) => {
        renameSync(own, join(run, 'disk'));
        symlinkSync(join(run, 'disk'), own);
        return [];
      },
    ],
    ['the session only looks', () => ['trainer.val_only=true', 'data.val_files=val.jsonl']],
  ])('leaves them where %s', async (_, prepare) => {
    const { run, own } = leftInRun();
    await session(runConfig(run, prepare(run, own)));
    expect(readdirSync(own)).toHaveLength(4);
  });

  test('leaves them where the directory is another session’s', async () => {
    const { run, own } = leftInRun();
    const claim = await RunClaim.take(run);
    await expect(session(runConfig(run, []))).rejects.toMatchObject({ code: 'IN_USE' });
    claim.release();
    expect(readdirSync(own)).toHaveLength(4);
  });

  test('goes on where they cannot be removed', async () => {
    const { run, own } = leftInRun();
    const { rmSync: remove } = fs;
    const denied = jest.spyOn(fs, 'rmSync').mockImplementation((file, options) => {
      if (String(file).startsWith(own)) throw new Error(`denied: ${String(file)}`);
      remove(file, options);
    });
    const said = await session(runConfig(run, []));
    denied.mockRestore();
    expect(said).toEqual([expect.stringContaining('old weights could not be removed: denied')]);
    expect(existsSync(own)).toBe(true);
  });
});
