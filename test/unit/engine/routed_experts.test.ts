import { Batch } from '../../../ts/batch/batch';
import { expertPlaces, joinedExperts, routingBytes, splitExperts } from '../../../ts/engine/routed_experts';
import { shardByRank } from '../../../ts/engine/shards';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { land } from '../../../ts/worker/message_arrays';
import { tinyExperts, tinyModel } from '../../helpers/tiny_model';

const mixture = (numExperts: number, topK = 2): NativeModelConfig => ({
  ...tinyModel(),
  moe: tinyExperts({ numExperts, topK }),
  moeLayers: [false, true, true],
});
const model = mixture(8);
const batch = Batch.fromSequences([[1, 2], [3], [1, 2], [5, 6, 7]], [[3, 4], [5], [6], [8, 9]]);
/** Of sequence i the bytes 10 i, 10 i + 1, ... */
const column = Array.from(batch.sequenceLens, (length, i) =>
  Uint8Array.from({ length: 4 * length }, (_, k) => 10 * i + k),
);

test('bytes of a token: a choice for each of topK in every layer with experts, two where a byte counts too few', () => {
  expect(routingBytes(model)).toBe(4);
  expect(routingBytes(mixture(256))).toBe(4);
  expect(routingBytes(mixture(257, 3))).toBe(12);
  expect(routingBytes(tinyModel())).toBe(0);
});

test('a column goes to the ranks and comes back in the order of the batch, also after it was cut and put together', () => {
  const given = batch.with({ routedExperts: column });
  const all = new Uint8Array(4 * batch.numTokens);
  for (const { indices } of shardByRank(given, 3)) {
    const sent = joinedExperts('update', given, model, indices);
    land(sent, expertPlaces(batch, indices, all, model));
  }
  expect(splitExperts(batch, all, model)).toEqual(column);
  const parted = Batch.concat([given.slice(2, 4), given.slice(0, 2)]).take([2, 3, 0, 1]);
  expect(joinedExperts('update', parted, model)).toEqual(joinedExperts('update', given, model));
  expect(joinedExperts('update', given.slice(0, 0), model)).toEqual(new Uint8Array(0));
});

test('what cannot be is refused with what was expected', () => {
  expect(() => joinedExperts('updatePolicy', batch, model)).toThrow(/the batch has no column routedExperts/);
  const wrong = (value: unknown) => batch.with({ routedExperts: [column[0], value, column[2], column[3]] });
  expect(() => joinedExperts('updatePolicy', wrong(new Uint8Array(7)), model)).toThrow(
    /\[updatePolicy\] column 'routedExperts', sequence 1: expected a Uint8Array of 8 \(2 tokens x 4 bytes\) but got Uint8Array of 7/,
  );
  expect(() => joinedExperts('updatePolicy', wrong('x'), model)).toThrow(/but got string/);
  expect(() => joinedExperts('updatePolicy', batch, tinyModel())).toThrow(/has no experts/);
});
