import type { RoleEngine } from '../../../ts/engine/role_engine';
import { draftOptions, type SpeculativeConfig } from '../../../ts/rollout/native/speculative_options';

const engine = (prediction: object | null = null): RoleEngine =>
  ({ model: { config: { prediction } } }) as unknown as RoleEngine;

test('drafts are made where they are asked for, by the names and defaults of the configuration', () => {
  expect(draftOptions(engine(), undefined)).toBe(null);
  expect(draftOptions(engine(), { method: 'ngram' })).toEqual({
    numTokens: 4,
    predicts: false,
    minMatch: 2,
    maxMatch: 8,
    maxSequences: 16,
    rememberedTokens: 4_194_304,
  });
  const all = { numSpeculativeTokens: 7, promptLookupMin: 3, promptLookupMax: 5, disableByBatchSize: 64 };
  expect(draftOptions(engine(), { method: 'ngram', ...all, historyTokens: 0 })).toEqual({
    numTokens: 7,
    predicts: false,
    minMatch: 3,
    maxMatch: 5,
    maxSequences: 64,
    rememberedTokens: 0,
  });
  // The longest match is no shorter than the shortest.
  expect(draftOptions(engine(), { method: 'ngram', promptLookupMin: 20 })).toMatchObject({ maxMatch: 20 });
});

const REFUSED: [object | null, RegExp][] = [
  [{ method: 'eagle' }, /speculative\] method: expected one of ngram, mtp but got "eagle"/],
  [{}, /method: expected one of ngram, mtp but got undefined/],
  [null, /expected an options object but got null/],
  [{ method: 'ngram', numSpeculativeToken: 4 }, /did you mean 'numSpeculativeTokens'/],
  [{ method: 'ngram', numSpeculativeTokens: 0 }, /numSpeculativeTokens: expected an integer from 1 to/],
  [{ method: 'ngram', promptLookupMin: 0 }, /promptLookupMin: expected an integer from 1 to/],
  [
    { method: 'ngram', promptLookupMin: 5, promptLookupMax: 4 },
    /promptLookupMin: expected at most promptLookupMax 4, got 5/,
  ],
  [{ method: 'ngram', disableByBatchSize: 1.5 }, /disableByBatchSize: expected an integer from 1 to/],
  [{ method: 'ngram', historyTokens: -1 }, /historyTokens: expected an integer from 0 to/],
];
test.each(REFUSED)('%j is refused', (options, message) => {
  expect(() => draftOptions(engine(), options as unknown as SpeculativeConfig)).toThrow(message);
});

test("the model's own layers draft where the engine holds them", () => {
  const options: SpeculativeConfig = { method: 'mtp', numSpeculativeTokens: 1 };
  for (const trained of [true, false])
    expect(draftOptions(engine({ trained }), options)).toMatchObject({ predicts: true, numTokens: 1 });
  expect(() => draftOptions(engine(), options)).toThrow(
    /method mtp: the engine has none of .*: create it with the option mtp/,
  );
});
