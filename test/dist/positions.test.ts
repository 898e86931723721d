import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { CONFORMANCE } from '../helpers/conformance';

const model = path.join(CONFORMANCE, 'models', 'llama_gqa', 'actor'); // of 128 positions
const of = (length: number): Batch =>
  Batch.fromSequences([[1, 2]], [Array.from({ length: length - 2 }, (_, i) => 3 + ((i * 7) % 120))]);

test('maxPositionEmbeddings: longer sequences, the same log-probs where both reach, and a saved model that keeps it', async () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'positions-'));
  const plain = await Actor.create({ model, optim: null });
  const longer = await Actor.create({ model, optim: null, maxPositionEmbeddings: 300 });
  try {
    await expect(plain.computeLogProb(of(200))).rejects.toThrow(
      /200 tokens, more than the 128 positions of the model/,
    );
    const { logProbs } = await longer.computeLogProb(of(200));
    expect(logProbs.every(Number.isFinite)).toBe(true);
    const short = (await plain.computeLogProb(of(128))).logProbs;
    expect([...logProbs.subarray(0, short.length)]).toEqual([...short]);
    const saved = path.join(directory, 'saved');
    await longer.saveModel(saved);
    expect(JSON.parse(readFileSync(path.join(saved, 'config.json'), 'utf8')).max_position_embeddings).toBe(
      300,
    );
  } finally {
    await Promise.all([plain.close(), longer.close()]);
    rmSync(directory, { recursive: true });
  }
});
