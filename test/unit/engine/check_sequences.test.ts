import { Batch } from '../../../ts/batch/batch';
import type { LoadedModel } from '../../../ts/checkpoint/model_dir';
import { checkSequences } from '../../../ts/engine/check_sequences';

const bounds = (vocabSize: number) => ({
  role: 'actor',
  model: { dir: 'a directory', config: { vocabSize, maxPositions: 8 } } as unknown as LoadedModel,
  capacity: 6,
});
const check = (batch: Batch, vocabSize = 100): void => checkSequences('x', batch, bounds(vocabSize));

test.each([-1, 100, 0x7fffffff, -0x80000000])('an id of %d: the sequence and the position', (id) => {
  const batch = Batch.fromSequences([[1], [2, 3]], [[4], [5, id, 99]]);
  expect(() => check(batch)).toThrow(
    `sequence 1, position 3: token id ${id} is outside the vocabulary of the model in a directory (0 to 99)`,
  );
});

test('the ids at both ends of the vocabulary pass; an empty batch, too', () => {
  check(Batch.fromSequences([[0], [99]], [[99], []]));
  check(Batch.fromSequences([], []));
});

test('sequences that are longer than the model or a micro-batch', () => {
  const of = (length: number): Batch => Batch.fromSequences([[1]], [new Array(length - 1).fill(1)]);
  expect(() => check(of(9))).toThrow('sequence 0 has 9 tokens, more than the 8 positions of the model');
  expect(() => check(of(7))).toThrow('sequence 0 has 7 tokens, more than maxTokensPerMicroBatch = 6');
  check(of(6));
});

test('ids are looked through once, whatever columns a batch gets; each vocabulary is asked for anew', () => {
  const batch = Batch.fromSequences([[1]], [[2, 50]]);
  check(batch);
  // A batch never changes: this shows that nobody looks.
  batch.get('tokens')[2] = 1000;
  check(batch.with({ values: [0, 0] }));
  expect(() => check(batch, 50)).toThrow('outside');
  expect(() => check(batch.take([0]))).toThrow('token id 1000');
});
