import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { RewardModel } from '../../ts/reward_model/reward_model';
import { modelTensors, rewardTensors, writeModel } from '../helpers/e2e_workspace';

const dir = mkdtempSync(join(tmpdir(), 'reward-model-'));
const file = (name: string): string => join(dir, name);
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
  await writeModel(file('policy'));
  await writeModel(file('model'), { tensors: rewardTensors() });
  await writeModel(file('other'), { tensors: rewardTensors() });
  shuffleVocabulary(file('other'));
});
afterAll(async () => {
  await group.close();
  rmSync(dir, { recursive: true });
});

/** The same characters under other ids (15 - id for all but the special tokens), and a chat template with role marks. */
function shuffleVocabulary(directory: string): void {
  const path = join(directory, 'tokenizer.json');
  const tokenizer = JSON.parse(readFileSync(path, 'utf8'));
  for (const [token, id] of Object.entries(tokenizer.model.vocab as Record<string, number>))
    if (id > 1) tokenizer.model.vocab[token] = 16 - id;
  writeFileSync(path, JSON.stringify(tokenizer));
  const configPath = join(directory, 'tokenizer_config.json');
  const config = JSON.parse(readFileSync(configPath, 'utf8'));
  config.chat_template =
    "{% for m in messages %}{{ '+' if m['role'] == 'user' else '-' }}{{ m['content'] }}{{ eos_token }}{% endfor %}" +
    '{% if add_generation_prompt %}-{% endif %}';
  writeFileSync(configPath, JSON.stringify(config));
}

const withModel = async <T>(
  options: Partial<Parameters<typeof RewardModel.create>[0]>,
  use: (model: RewardModel) => Promise<T>,
): Promise<T> => {
  const model = await RewardModel.create({ model: file('model'), group, ...options });
  try {
    return await use(model);
  } finally {
    await model.close();
  }
};

const batch = Batch.fromSequences(
  [
    [2, 3, 4],
    [5, 6],
  ],
  [
    [7, 8, 1],
    [9, 1],
  ],
);

test('over three workers, one of which has no sequence, scores are bitwise those of one', async () => {
  const score = (model: RewardModel) => model.score(batch);
  const expected = await withModel({}, score);
  const three = await WorkerGroup.launch({ worldSize: 3, device: 'cpu' });
  try {
    for (const sharding of ['full_shard', 'no_shard'] as const)
      expect(await withModel({ group: three, parallel: { sharding } }, score)).toEqual(expected);
  } finally {
    await three.close();
  }
});

test('over two workers that share every sequence by context, the layers or every matrix, scores are those of one', async () => {
  const long = Batch.fromSequences(
    [[2, 3, 4], [5], [2, 3, 4]],
    [Array.from({ length: 40 }, (_, i) => 2 + (i % 12)), [9, 1], [7, 8, 1]],
  );
  const score = (model: RewardModel) => model.score(long);
  const expected = await withModel({}, score);
  const two = await WorkerGroup.launch({ worldSize: 2, device: 'cpu' });
  try {
    expect(await withModel({ group: two, parallel: { cp: 2 } }, score)).toEqual(expected);
    // Two stages: the same bits. Two at every matrix: sums of two parts.
    expect(await withModel({ group: two, parallel: { pp: 2 } }, score)).toEqual(expected);
    const cut = await withModel({ group: two, parallel: { tp: 2, sequenceParallel: true } }, score);
    for (const [i, value] of cut.entries())
      expect(Math.abs(value - (expected[i] as number))).toBeLessThan(1e-5);
  } finally {
    await two.close();
  }
});

describe('another tokenizer', () => {
  // "1+2=" and "7": ids of the policy are 2 + digit, + 12, - 13, = 14; those of the other tokenizer 16 minus that.
  const ours = (text: string): number[] => [...text].map((c) => '0123456789+-='.indexOf(c) + 2);
  const theirs = (text: string): number[] =>
    text.split('|').flatMap((part, i) => [...(i > 0 ? [1] : []), ...ours(part).map((id) => 16 - id)]);
  const read = Batch.fromSequences([ours('1+2='), ours('45')], [[...ours('7'), 1], ours('6-')]);

  test('the chat is put through its template, the response without its end token', async () => {
    const rawPrompt = [[{ role: 'user', content: '1+2=' }], [{ role: 'user', content: '45' }]];
    const expected = await withModel({ model: file('other') }, (model) =>
      model.score(Batch.fromSequences([theirs('+1+2=|-7|'), theirs('+45|-6-|')], [[], []])),
    );
    const scores = await withModel({ model: file('other'), inputTokenizer: file('policy') }, (model) =>
      model.score(read.with({ rawPrompt })),
    );
    expect(scores).toEqual(expected);
    expect(scores[0]).not.toBe(scores[1]);
  });

  test('a prompt of plain text stays text', async () => {
    const expected = await withModel({ model: file('other') }, (model) =>
      model.score(Batch.fromSequences([theirs('1+2=7'), theirs('456-')], [[], []])),
    );
    const scores = await withModel({ model: file('other'), inputTokenizer: file('policy') }, (model) =>
      model.score(read.with({ rawPrompt: ['1+2=', '45'] })),
    );
    expect(scores).toEqual(expected);
  });

  test('needs the prompts, and a template for messages', async () => {
    await withModel({ model: file('other'), inputTokenizer: file('policy') }, async (model) => {
      await expect(model.score(read)).rejects.toThrow(/no column 'rawPrompt'/);
      await expect(
        model.score(read.with({ rawPrompt: [3, 4] }, { granularity: { rawPrompt: 'sequence' } })),
      ).rejects.toThrow(/sequence 0\] expected the prompt as a string or a list/);
    });
    await writeModel(file('no_template'), { tensors: rewardTensors() });
    const path = join(file('no_template'), 'tokenizer_config.json');
    const { chat_template: _, ...config } = JSON.parse(readFileSync(path, 'utf8'));
    writeFileSync(path, JSON.stringify(config));
    await withModel({ model: file('no_template'), inputTokenizer: file('policy') }, (model) =>
      expect(
        model.score(
          read.with({ rawPrompt: [[{ role: 'user', content: '1' }], [{ role: 'user', content: '2' }]] }),
        ),
      ).rejects.toThrow(/no_template has no chat template/),
    );
  });
});

test('where the prompt ends, and who shares it, does not matter', async () => {
  const texts = [
    [2, 3, 4, 5, 6],
    [2, 3, 4, 6, 5, 7],
    [2, 3, 9],
  ];
  const cutAt = (n: number): Batch =>
    Batch.fromSequences(
      texts.map((text) => text.slice(0, n)),
      texts.map((text) => text.slice(n)),
    );
  await withModel({}, async (model) => {
    const scores = await model.score(cutAt(1));
    for (const n of [2, 3]) expect(await model.score(cutAt(n))).toEqual(scores);
  });
});

describe('length', () => {
  test('a sequence that just fits the capacity, and one that does not', async () => {
    await withModel({ maxTokensPerMicroBatch: 6 }, async (model) => {
      expect(await model.score(batch)).toHaveLength(2);
      const long = Batch.fromSequences([[2, 3, 4, 5]], [[6, 7, 1]]);
      await expect(model.score(long)).rejects.toThrow(/sequence 0 has 7 tokens, more than the 6 that/);
    });
  });

  test('every position of the model may be used', async () => {
    const full = Batch.fromSequences([new Array(32).fill(2)], [new Array(32).fill(3)]);
    await withModel({}, async (model) => {
      expect(await model.score(full)).toHaveLength(1);
      const over = Batch.fromSequences([new Array(33).fill(2)], [new Array(32).fill(3)]);
      await expect(model.score(over)).rejects.toThrow(/65 tokens, more than the 64 that/);
    });
  });

  test('truncation drops one end', async () => {
    const expected = await withModel({}, (model) =>
      model.score(
        Batch.fromSequences(
          [
            [2, 3],
            [4, 7],
          ],
          [
            [4, 7],
            [8, 1],
          ],
        ),
      ),
    );
    const cut = (truncation: 'left' | 'right') =>
      withModel({ maxLength: 4, truncation }, async (model) => (await model.score(batch))[0]);
    expect(await cut('right')).toBe(expected[0]);
    expect(await cut('left')).toBe(expected[1]);
  });
});

describe('what is no reward model', () => {
  const refused = async (model: string, message: RegExp): Promise<void> => {
    await expect(RewardModel.create({ model, group })).rejects.toThrow(message);
  };

  test('a causal LM, no directory, two labels, an unknown option', async () => {
    await refused(file('policy'), /policy has no score\.weight \[1, 32\]: expected a reward model/);
    await refused(file('nowhere'), /nowhere is not a directory/);
    const tensors = rewardTensors();
    const head = tensors.find(({ name }) => name === 'score.weight')!;
    Object.assign(head, { shape: [2, 32], data: new Float32Array(64) });
    await writeModel(file('labels'), { tensors });
    await refused(file('labels'), /score\.weight.*\[1, 32\].*\[2, 32\]/);
    await expect(RewardModel.create({ model: file('model'), group, maxlength: 3 } as never)).rejects.toThrow(
      /unknown option 'maxlength'/,
    );
  });

  test('a lone token outside the vocabulary, an empty batch, a closed model', async () => {
    await withModel({}, async (model) => {
      await expect(model.score(Batch.fromSequences([[2]], [[15]]))).rejects.toThrow(/token id 15 is outside/);
      expect(await model.score(Batch.fromSequences([], []))).toHaveLength(0);
      await model.close();
      await expect(model.score(batch)).rejects.toMatchObject({ code: 'CLOSED' });
    });
  });

  test('a head that gives NaN', async () => {
    expect(modelTensors().some(({ name }) => name === 'score.weight')).toBe(false);
    const tensors = rewardTensors();
    tensors.find(({ name }) => name === 'score.weight')!.data.fill(3e38);
    await writeModel(file('huge'), { tensors });
    await withModel({ model: file('huge') }, (model) =>
      expect(model.score(batch)).rejects.toMatchObject({
        code: 'NON_FINITE',
        message: expect.stringContaining('huge'),
      }),
    );
  });
});
