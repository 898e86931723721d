import { checkRequest, RequestChecks } from '../../../ts/rollout/check_request';
import { LiveRequest } from '../../../ts/rollout/native/live_request';
import { Placement } from '../../../ts/rollout/native/placement';
import { StopStrings } from '../../../ts/rollout/native/stop_strings';
import { detached } from '../../helpers/bad_values';

const model = { vocabSize: 100, maxTokens: 50, eosTokenIds: [9] };

describe('a request', () => {
  test('is completed by what is off', () => {
    expect(checkRequest({ promptIds: [1], sampling: { maxNewTokens: 3 } }, model)).toMatchObject({
      temperature: 1,
      topK: 0,
      topP: 1,
      minP: 0,
      repetitionPenalty: 1,
      stopTokenIds: [9],
      topLogProbs: 0,
      promptLogProbs: false,
    });
  });

  test.each<[object, object, RegExp]>([
    [{}, {}, /maxNewTokens: expected an integer >= 1, but it is not given/],
    [{}, { maxNewTokens: 50 }, /together 51, more than the 50 that the engine can hold/],
    [{ promptIds: [] }, { maxNewTokens: 1 }, /promptIds: expected at least one token/],
    [
      { promptIds: [3, 100] },
      { maxNewTokens: 1 },
      /promptIds: .*100.* at position 1 is outside the model's vocabulary/,
    ],
    [{}, { maxNewTokens: 1, minP: 2 }, /minP: expected a number from 0 to 1 but got 2/],
    [{}, { maxNewTokens: 1, repetitionPenalty: 0 }, /repetitionPenalty: expected a number > 0/],
    [{}, { maxNewTokens: 1, stop: [''] }, /stop: expected texts that are not empty/],
    [{}, { maxNewTokens: 1, stop: ['\ude00'] }, /stop: expected texts of whole characters/],
    [{}, { maxNewTokens: 1, badWords: [[1], []] }, /badWords: entry 1 is empty/],
    [{}, { maxNewTokens: 1, logitBias: new Map([[100, 1]]) }, /logitBias: .*outside the model's vocabulary/],
    [{}, { maxNewTokens: 1, seed: 3 }, /seed: expected a bigint/],
    [{ promptIds: { length: -1 } }, { maxNewTokens: 1 }, /promptIds: expected an array of token ids/],
    [{}, { maxNewTokens: 1, stop: 'end' }, /stop: expected an array of texts but got "end"/],
    [{}, { maxNewTokens: 1, stopTokenIds: 5 }, /stopTokenIds: expected an array of token ids but got 5/],
    [{}, { maxNewTokens: 1, stopTokenIds: new Set([500]) }, /stopTokenIds: expected an array of token ids/],
    [{}, { maxNewTokens: 1, stopTokenIds: detached() }, /stopTokenIds: expected an array of token ids/],
    [{}, { maxNewTokens: 1, stopTokenIds: { length: 1e9 } }, /stopTokenIds: expected an array of token ids/],
    [{}, { maxNewTokens: 1, badWords: new Array(2) }, /badWords: expected an array of arrays of token ids/],
    [{ images: 'x' }, { maxNewTokens: 1 }, /images\] expected an array of images .* got "x"/],
    [
      { images: [null] },
      { maxNewTokens: 1 },
      /image 0: height: expected a positive integer but got undefined/,
    ],
    [
      { images: [{ height: 2, width: 2, pixels: new Uint8Array(3) }] },
      { maxNewTokens: 1 },
      /image 0: pixels: expected a Uint8Array of 2 x 2 x 3 = 12 bytes but got one of 3/,
    ],
    [{}, { maxNewTokens: 1, badWords: [5, 6] }, /badWords: expected an array of arrays of token ids/],
    [{}, { maxNewTokens: 1, logitBias: { 5: 1 } }, /logitBias: expected a Map of token ids and numbers/],
    [{}, { maxNewTokens: 1, constraint: {} }, /constraint: expected an object with the method next/],
    [{}, { maxNewTokens: 1, promptLogProbs: 'yes' }, /promptLogProbs: expected true or false but got "yes"/],
    [{ cacheSalt: 5 }, { maxNewTokens: 1 }, /cacheSalt: expected a text but got 5/],
    [{ session: {} }, { maxNewTokens: 1 }, /session: expected a text/],
    [{ grammar: '{}' }, { maxNewTokens: 1 }, /grammar: expected \{kind: 'json-schema', schema\} or/],
    [{ grammar: { kind: 'json-schema', schema: {} } }, { maxNewTokens: 1 }, /schema and tag as JSON texts/],
    [{}, { maxNewTokens: 1, top_k: 3 }, /unknown option 'top_k'; did you mean 'topK'/],
    [{ deadline: 3 }, { maxNewTokens: 1 }, /unknown option 'deadline'; did you mean 'deadlineMs'/],
  ])('%j with %j is refused', (request, sampling, message) => {
    const given = { promptIds: [1], sampling, ...request } as never;
    expect(() => checkRequest(given, model)).toThrow(message);
  });
});

test('lists of a request are those that were looked at, whatever becomes of them later', () => {
  const stopTokenIds = [3];
  const badWords = [[4]];
  const logitBias = new Map([[5, 1]]);
  const sampling = { maxNewTokens: 1, stopTokenIds, badWords, logitBias };
  const complete = checkRequest({ promptIds: [1], sampling }, model);
  stopTokenIds.push(1000);
  badWords[0]?.push(1000);
  logitBias.set(1000, 1);
  expect(complete).toMatchObject({ stopTokenIds: [3], badWords: [[4]], logitBias: new Map([[5, 1]]) });
});

test('an end token outside the vocabulary is said to be the one of the model, or of the request', () => {
  const ends = (eosTokenIds: number[], stopTokenIds?: number[]) => () =>
    checkRequest(
      { promptIds: [1], sampling: { maxNewTokens: 1, ...(stopTokenIds && { stopTokenIds }) } },
      { ...model, eosTokenIds },
    );
  expect(ends([9, 100])).toThrow(
    /end tokens of the model \(eos_token_id of its generation_config\.json.*\): 100 at position 1 is outside the model's vocabulary \(0 to 99\)/,
  );
  expect(ends([9], [100])).toThrow(/stopTokenIds: 100 at position 0 is outside/);
});

test.each([-1n, 1n << 64n])('the seed %d, which would count as another one, is refused', (seed) => {
  const given = { promptIds: [1], sampling: { maxNewTokens: 1, seed } };
  expect(() => checkRequest(given, model)).toThrow(/seed: expected a bigint from 0 to 2\^64 - 1/);
});

describe('a deadline', () => {
  afterEach(() => jest.useRealTimers());

  test.each([
    [1000, 1],
    // More than timers know: they would take it for none at all.
    [3e9, 0],
  ])('of %d ms within 2 s: %d aborts', (deadlineMs, aborts) => {
    jest.useFakeTimers();
    const sampling = { maxNewTokens: 3 };
    const complete = checkRequest({ promptIds: [1], sampling }, model);
    const asked = { promptIds: [1], sampling, deadlineMs };
    const aborted = jest.fn();
    new LiveRequest(1, Int32Array.of(1), complete, asked, null, aborted);
    jest.advanceTimersByTime(2000);
    expect(aborted).toHaveBeenCalledTimes(aborts);
  });
});

describe('stop strings', () => {
  // Token t is the t-th of these.
  const pieces = ['he', 'l', 'lo', ' wo', 'rld', '</', 'a', '>'];
  const decode = (tokens: ArrayLike<number>): string =>
    Array.from(tokens, (token) => pieces[token] as string).join('');
  const tokenizer = { decode };
  const found = (stops: string[], tokens: number[]): [number, string] | null => {
    const strings = new StopStrings(stops, tokenizer);
    for (const [i, token] of tokens.entries()) {
      const text = strings.push(token);
      if (text !== null) return [i, text];
    }
    return null;
  };

  test('are found at the token that completes them, however they are cut', () => {
    expect(found(['</a>', 'x'], [0, 1, 2, 5, 6, 7, 0])).toEqual([5, '</a>']);
    expect(found(['lo w'], [0, 1, 2, 3, 4])).toEqual([3, 'lo w']);
    expect(found(['low'], [0, 1, 2, 3, 4])).toBeNull();
  });

  test('are found late in a long response', () => {
    expect(found(['</a>'], [...new Array(10_000).fill(1), 5, 6, 7])).toEqual([10_002, '</a>']);
  });

  test('a token is decoded with its neighbours, however long the response and the stop text are', () => {
    let decoded = 0;
    const counting = {
      decode(tokens: ArrayLike<number>): string {
        decoded += tokens.length;
        return decode(tokens);
      },
    };
    const strings = new StopStrings(['x'.repeat(500), 'lo</a>'], counting);
    for (let i = 0; i < 1000; i++) expect(strings.push(i % 5)).toBeNull();
    expect([2, 5, 6, 7].map((token) => strings.push(token))).toEqual([null, null, null, 'lo</a>']);
    expect(decoded).toBeLessThan(5 * 1004);
  });
});

describe('placement', () => {
  const request = (first: number, session?: string): LiveRequest =>
    ({ promptIds: Int32Array.of(first, 2, 3), request: { session } }) as unknown as LiveRequest;

  test('prompts that begin alike go to one rank, others to the least loaded', () => {
    const placement = new Placement(3);
    expect([1, 1, 2, 2, 3, 1].map((first) => placement.place(request(first)))).toEqual([0, 0, 1, 1, 2, 0]);
    for (const rank of [2, 1, 1]) placement.left(rank);
    expect(placement.place(request(4))).toBe(1);
    expect(placement.place(request(2))).toBe(1);
  });

  test('a session stays where it is, until others have far less to do', () => {
    const placement = new Placement(2);
    const ranks = Array.from({ length: 40 }, (_, i) => placement.place(request(i, 'one')));
    expect(ranks.slice(0, 17)).toEqual(new Array(17).fill(0));
    expect(ranks).toContain(1);
  });
});

describe('requests of a batch', () => {
  const stopTokenIds = [3];
  const request = (seed: bigint, more: object = {}) => ({
    promptIds: [1],
    sampling: { maxNewTokens: 3, stopTokenIds, seed, ...more },
  });

  test('share their sampling where they differ in the seed alone', () => {
    const checks = new RequestChecks();
    const first = checks.check(request(1n), model);
    expect(checks.check(request(2n), model)).toBe(first);
    expect(checks.check(request(2n, { temperature: 0.5 }), model)).toMatchObject({ temperature: 0.5 });
    expect(checks.check(request(2n, { stopTokenIds: [4] }), model)).toMatchObject({ stopTokenIds: [4] });
    expect(checkRequest(request(2n), model)).toEqual({ ...first, seed: 2n });
  });

  test('a wrong one after a right one is refused, and what is forgotten is read again', () => {
    const checks = new RequestChecks();
    const first = checks.check(request(1n), model);
    expect(() => checks.check(request(1n, { topP: 2 }), model)).toThrow('topP');
    expect(() => checks.check({ ...request(1n), sampling: null as never }, model)).toThrow('sampling');
    expect(() => checks.check({ ...request(1n), promptIds: [] }, model)).toThrow('promptIds');
    checks.forget();
    expect(checks.check(request(1n), model)).not.toBe(first);
  });
});
