import { readFileSync } from 'node:fs';
import path from 'node:path';
import { runInNewContext } from 'node:vm';
import { Batch } from '../../../ts/batch/batch';

const three = (): Batch =>
  Batch.fromSequences([[1, 2], [3], [4, 5, 6]], [[7], [8, 9], []], {
    advantages: [0.5, -1, 2],
    uid: ['a', 'b', 'c'],
  });

describe('fromSequences', () => {
  test('lays sequences end to end', () => {
    const b = three();
    expect([b.size, b.numTokens, b.numResponseTokens]).toEqual([3, 9, 3]);
    expect([...b.get('tokens')]).toEqual([1, 2, 7, 3, 8, 9, 4, 5, 6]);
    expect([...b.seqOffsets]).toEqual([0, 3, 6, 9]);
    expect([...b.promptLens]).toEqual([2, 1, 3]);
    expect([...b.responseOffsets]).toEqual([0, 1, 3, 3]);
    expect([...b.get('responseMask')]).toEqual([1, 1, 1]);
    expect([...b.prompt(1)]).toEqual([3]);
    expect([...b.response(1)]).toEqual([8, 9]);
    expect([...b.response(-1)]).toEqual([]);
    expect(b.get('uid')).toEqual(['a', 'b', 'c']);
    expect(b.row('advantages', 1)).toEqual(Float32Array.of(-1, 2));
    expect(b.row('uid', 2)).toBe('c');
  });

  test('takes another mask, and nothing that is none', () => {
    const b = three();
    const masked = b.withResponseMask([[1], [0, 1], []]);
    expect([...masked.get('responseMask')]).toEqual([1, 0, 1]);
    expect([...b.get('responseMask')]).toEqual([1, 1, 1]);
    expect(masked.get('advantages')).toBe(b.get('advantages'));
    expect(() => b.withResponseMask([1, 1])).toThrow(/column 'responseMask': expected 3 entries/);
    expect(() => b.withResponseMask([1, 2, 1])).toThrow(/expected 0 or 1 but got 2/);
  });

  test('adopts what it is told to, and copies what has another type', () => {
    const [tokens, oldLogProbs, responseMask] = [Int32Array.of(1, 2, 3), Float32Array.of(-1, -2), [1, 0]];
    const b = Batch.fromRagged(
      { tokens, promptLens: [1], responseLens: [2], columns: { oldLogProbs, responseMask } },
      { adopt: true },
    );
    expect(b.get('tokens')).toBe(tokens);
    expect(b.get('oldLogProbs')).toBe(oldLogProbs);
    expect([...b.get('responseMask')]).toEqual([1, 0]);
    expect(b.with({ values: oldLogProbs }, { adopt: true }).get('values')).toBe(oldLogProbs);
    expect([...b.with({ values: [1, 2] }, { adopt: true }).get('values')]).toEqual([1, 2]);
    expect(() => b.with({ values: new Float32Array(3) }, { adopt: true })).toThrow(/expected 2 entries/);
  });

  test('adopts masks of whole bytes, but for what is none', () => {
    const length = 11;
    const of = (mask: Uint8Array): Batch =>
      Batch.fromSequences([[1]], [new Array(length).fill(2)], { responseMask: mask }, { adopt: true });
    const mask = Uint8Array.from({ length }, (_, t) => t % 2);
    expect(of(mask).get('responseMask')).toBe(mask);
    for (const [at, wrong] of [
      [0, 2],
      [7, 128],
      [10, 255],
    ] as const)
      expect(() => of(mask.with(at, wrong))).toThrow(`entry ${at}: expected 0 or 1 but got ${wrong}`);
    const within = new Uint8Array(new ArrayBuffer(16), 1, length).fill(1);
    expect([...of(within).get('responseMask')]).toEqual([...within]);
  });

  test('refuses more tokens than offsets can say', () => {
    const ragged = { tokens: [], promptLens: [2 ** 31 - 1, 1], responseLens: [0, 0] };
    expect(() => Batch.fromRagged(ragged)).toThrow(
      /at most 2\^31-1 tokens, exceeded at sequence 1 of 2: take fewer sequences .*data\.train_batch_size/,
    );
  });

  test('copies what it is given', () => {
    const advantages = Float32Array.of(1, 2);
    const b = Batch.fromSequences([[1]], [[2, 3]], { advantages });
    advantages[0] = 9;
    expect([...b.get('advantages')]).toEqual([1, 2]);
  });

  test('takes response columns per sequence', () => {
    const b = Batch.fromSequences([[1], [2]], [[3, 4], [5]], { oldLogProbs: [[-1, -2], [-3]] });
    expect([...b.get('oldLogProbs')]).toEqual([-1, -2, -3]);
  });

  test.each<[string, () => unknown, RegExp]>([
    ['empty prompt', () => Batch.fromSequences([[1], []], [[2], [3]]), /sequence 1.*empty/],
    ['different counts', () => Batch.fromSequences([[1]], []), /1 prompts but 0 responses/],
    ['fraction', () => Batch.fromSequences([[1.5]], [[1]]), /prompt 0.*32-bit integer but got 1.5/],
    [
      'short column',
      () => Batch.fromSequences([[1]], [[1, 2]], { values: [1] }),
      /'values': expected 2 entries/,
    ],
    [
      'bad mask',
      () => Batch.fromSequences([[1]], [[1, 2]], { responseMask: [1, 2] }),
      /'responseMask', entry 1: expected 0 or 1/,
    ],
    [
      'unknown length',
      () => Batch.fromSequences([[1, 9]], [[1, 2]], { mine: [1, 2, 3] }),
      /'mine': expected 1 .*2 .*4 .*got 3/,
    ],
    [
      'ambiguous',
      () => Batch.fromSequences([[1], [2]], [[1], [2]], { mine: [1, 2] }),
      /fits .*granularity: \{ mine/,
    ],
    ['not an array', () => Batch.fromSequences([[1]], [[1]], { uid: 'x' }), /'uid': expected an array/],
  ])('%s is an error', (_name, make, message) => {
    expect(make).toThrow(message);
  });

  test('an ambiguous length is settled by the option', () => {
    const b = Batch.fromSequences(
      [[1], [2]],
      [[1], [2]],
      { mine: [1, 2] },
      { granularity: { mine: 'sequence' } },
    );
    expect(b.granularity('mine')).toBe('sequence');
    expect(b.repeat(2).get('mine')).toEqual([1, 1, 2, 2]);
  });

  test('strings are per sequence whatever the length', () => {
    const b = Batch.fromSequences([[1]], [[1]], { answer: ['x'] });
    expect(b.granularity('answer')).toBe('sequence');
  });
});

describe('what is no array, or would take all memory, is refused with its name', () => {
  const b = Batch.fromSequences([[1], [2]], [[3], [4]]);
  test.each<[string, () => unknown, RegExp]>([
    [
      'fromSequences(null, null)',
      () => Batch.fromSequences(null!, null!),
      /fromSequences: prompts: expected an array of arrays but got null/,
    ],
    [
      'fromSequences([[1]], null)',
      () => Batch.fromSequences([[1]], null!),
      /fromSequences: responses: .* got null/,
    ],
    ['a null prompt', () => Batch.fromSequences([null!], [[1]]), /prompt 0: expected an array but got null/],
    [
      'a null response',
      () => Batch.fromSequences([[1]], [null!]),
      /response 0: expected an array but got null/,
    ],
    [
      'a number as prompt',
      () => Batch.fromSequences([5 as never], [[1]]),
      /prompt 0: expected an array but got 5/,
    ],
    [
      'null columns',
      () => Batch.fromSequences([[1]], [[1]], null!),
      /columns: expected an object but got null/,
    ],
    ['fromRagged(null)', () => Batch.fromRagged(null!), /fromRagged: expected an object but got null/],
    [
      'fromRagged({})',
      () => Batch.fromRagged({} as never),
      /fromRagged: promptLens: expected an array but got undefined/,
    ],
    ['fromPadded(null)', () => Batch.fromPadded(null!), /fromPadded: expected an object but got null/],
    [
      'fromPadded({})',
      () => Batch.fromPadded({} as never),
      /fromPadded: inputIds: expected an array but got undefined/,
    ],
    ['concat(null)', () => Batch.concat(null!), /concat: expected an array of batches but got null/],
    [
      'concat of what only looks like an array',
      () => Batch.concat({ length: 1, 0: b } as never),
      /concat: expected an array of batches but got {/,
    ],
    ['concat([{}])', () => Batch.concat([{} as never]), /concat: expected entry 0 to be a Batch but got {}/],
    ['with(null)', () => b.with(null!), /with: expected an object but got null/],
    ['take(null)', () => b.take(null!), /take: expected an array but got null/],
    ['reorder(null)', () => b.reorder(null!), /reorder: expected an array but got null/],
    [
      'repeat(1e9)',
      () => b.repeat(1e9),
      /repeat: 2 sequences x 1000000000: expected at most 16777216 sequences/,
    ],
    [
      'padToDivisor(1e12)',
      () => b.padToDivisor(1e12),
      /padToDivisor: 1000000000000 sequences: expected at most 16777216/,
    ],
    [
      'a length that nobody could fill',
      () => Batch.fromSequences([{ length: 1e15, [1e15 - 1]: 1 }], [[1]]),
      /prompt 0: expected at most 2147483647 entries but got an array of 1000000000000000/,
    ],
    [
      'holes, thousands of millions of them',
      () => Batch.fromPadded({ inputIds: new Array(2 ** 32 - 1), attentionMask: [1, 1], responseLength: 1 }),
      /fromPadded: inputIds: expected at most 2147483647 entries but got an array of 4294967295/,
    ],
    [
      'new Batch',
      () => new (Batch as unknown as new (...given: unknown[]) => Batch)({ size: 1 }, new Map()),
      /expected Batch.fromSequences, fromRagged or fromPadded/,
    ],
    ['as many sequences', () => b.take(new Array(2 ** 31)), /take: expected at most/],
    [
      'a negative length of a response',
      () => Batch.fromRagged({ tokens: [1, 2, 3], promptLens: [3, 1], responseLens: [-2, 1] }),
      /sequence 0: expected a response of 0 tokens or more but its length is -2/,
    ],
    [
      'a negative length of a prompt',
      () => Batch.fromRagged({ tokens: [1], promptLens: [-1], responseLens: [2] }),
      /sequence 0: expected a prompt of at least one token but its length is -1/,
    ],
    [
      'lengths of other numbers of sequences',
      () => Batch.fromRagged({ tokens: [1, 2], promptLens: [1, 1], responseLens: [0] }),
      /fromRagged: expected a length of each prompt and response but got 2 promptLens and 1 responseLens/,
    ],
    [
      'a mistyped argument of fromRagged',
      () => Batch.fromRagged({ tokens: [1], promptLens: [1], responseLens: [0], colums: {} } as never),
      /fromRagged\] unknown option 'colums'; did you mean 'columns'/,
    ],
    [
      'a mistyped argument of fromPadded',
      () => Batch.fromPadded({ inputIds: [1], attentionMask: [1], responselength: 0 } as never),
      /fromPadded\] unknown option 'responselength'; did you mean 'responseLength'/,
    ],
    [
      'tokens twice',
      () => Batch.fromSequences([[1]], [[2]], { tokens: [3, 4] }),
      /column 'tokens' follows from the prompts and responses; leave it out/,
    ],
    [
      'a mask that is not one to its end',
      () => b.take([true, 1] as never),
      /take: entry 1 of a mask: expected true or false but got 1/,
    ],
    [
      'rows of gigabytes',
      () => b.toPadded('responseMask', 2 ** 31),
      /toPadded: responseLength: expected at most 16777216 tokens but got 2147483648/,
    ],
    [
      'chunk(1e9) of none',
      () => b.slice(0, 0).chunk(1e9),
      /chunk: 1000000000 parts: expected at most 16777216/,
    ],
  ])('%s', (_, act, message) => {
    expect(act).toThrow(message);
    expect(act).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
  });
});

describe('operations', () => {
  test('with adds, accepts equal duplicates and refuses others', () => {
    const b = three().with({ values: [1, Number.NaN, 3] });
    expect(b.with({ values: [1, Number.NaN, 3], uid: ['a', 'b', 'c'] })).toEqual(b);
    expect(() => b.with({ values: [1, Number.NaN, 4] })).toThrow(
      /'values' is there already and differs at entry 2/,
    );
    expect(() => b.with({ responseMask: b.get('responseMask').map((bit) => 1 - bit) })).toThrow(
      /withResponseMask\(\.\.\.\) replaces it/,
    );
    expect(() => b.with({ uid: ['a', 'x', 'c'] })).toThrow(/'uid'.*entry 1 \("b" there, "x" given\)/);
    expect(
      b
        .drop('values')
        .with({ values: [4, 5, 6] })
        .get('values'),
    ).toEqual(Float32Array.of(4, 5, 6));
    expect(three().has('values')).toBe(false);
  });

  test('columns of dates, maps and objects that hold themselves are compared as what they are', () => {
    const ring = (name: string): unknown => {
      const made: Record<string, unknown> = { name };
      made.self = made;
      return made;
    };
    const row = (day: number, name: string): unknown[] => [new Date(day), new Map([[name, 1]]), ring(name)];
    const b = three().with({ extra: row(1, 'a') });
    expect(b.with({ extra: row(1, 'a') }).get('extra')).toEqual(row(1, 'a'));
    expect(() => b.with({ extra: [new Date(2), ...row(1, 'a').slice(1)] })).toThrow(/differs at entry 0/);
    expect(() => b.with({ extra: [new Date(1), new Map(), ring('a')] })).toThrow(/differs at entry 1/);
    expect(() => b.with({ extra: [...row(1, 'a').slice(0, 2), ring('b')] })).toThrow(/differs at entry 2/);
  });

  test('a column may have the name of what every object has', () => {
    const named = JSON.parse('{ "constructor": [1, 2, 3], "__proto__": [4, 5, 6] }') as Record<
      string,
      number[]
    >;
    const b = Batch.fromSequences([[1], [2], [3]], [[4, 5], [6], [7]], named, { granularity: {} });
    const padded = Batch.fromPadded({
      inputIds: [1, 2, 3, 4, 5, 6],
      attentionMask: [1, 1, 1, 1, 1, 1],
      responseLength: 1,
      batchSize: 3,
      columns: named,
      granularity: JSON.parse('{ "constructor": "sequence", "__proto__": "sequence" }'),
    });
    for (const one of [b.with({ hasOwnProperty: [7, 8, 9] }), padded]) {
      expect(one.get('constructor')).toEqual([1, 2, 3]);
      expect(one.get('__proto__')).toEqual([4, 5, 6]);
    }
    expect(b.with({ valueOf: [1, 1, 1, 1, 1, 1, 1] }, { granularity: {} }).granularity('valueOf')).toBe(
      'token',
    );
  });

  test('select, drop, pop, rename', () => {
    const b = three();
    expect(b.select(['uid']).names.sort()).toEqual(['promptLens', 'responseMask', 'tokens', 'uid']);
    expect(b.drop(['uid']).has('uid')).toBe(false);
    expect(() => b.drop('nothing')).toThrow(/no column 'nothing'; this batch has .*advantages/);
    expect(() => b.drop('tokens')).toThrow(/part of every batch/);
    const { popped, rest } = b.pop(['uid']);
    expect([popped.has('uid'), popped.has('advantages'), rest.has('uid')]).toEqual([true, false, false]);
    expect(b.rename({ uid: 'id' }).get('id')).toEqual(['a', 'b', 'c']);
    expect(() => b.rename({ uid: 'advantages' })).toThrow(/there is a column 'advantages' already/);
  });

  test('take, slice, reorder', () => {
    const b = three();
    expect(b.take([2, 0, 0]).get('uid')).toEqual(['c', 'a', 'a']);
    expect([...b.take([2, 0, 0]).get('tokens')]).toEqual([4, 5, 6, 1, 2, 7, 1, 2, 7]);
    expect([...b.take([2, 0, 0]).get('advantages')]).toEqual([0.5, 0.5]);
    expect(b.take([-1]).get('uid')).toEqual(['c']);
    expect(b.take([true, false, true]).get('uid')).toEqual(['a', 'c']);
    expect(b.slice(-2).get('uid')).toEqual(['b', 'c']);
    expect(b.slice(1, 1).size).toBe(0);
    const bounds = [undefined, 0, 1, 2.7, 3, 9, -1, -2.5, -9, Number.NaN, Infinity, -Infinity];
    for (const start of bounds)
      for (const end of bounds)
        expect(b.slice(start, end).get('uid')).toEqual(['a', 'b', 'c'].slice(start, end));
    expect(() => b.take([3])).toThrow(/index 3 is outside a batch of 3/);
    expect(() => b.reorder([0, 0, 1])).toThrow(/sequence 0 appears twice/);
    expect(() => b.reorder([0, 1])).toThrow(/expected 3 indices/);
  });

  test('chunk, split, minibatches', () => {
    const b = three();
    expect(b.chunk(3).map((x) => x.get('uid'))).toEqual([['a'], ['b'], ['c']]);
    expect(() => b.chunk(2)).toThrow(/3 sequences do not divide into 2/);
    expect(b.split(2).map((x) => x.size)).toEqual([2, 1]);
    expect([...b.minibatches(1, 2)].map((x) => x.get('uid')[0])).toEqual(['a', 'b', 'c', 'a', 'b', 'c']);
    expect(() => [...b.minibatches(2)]).toThrow(/do not divide into mini-batches of 2/);
  });

  test('repeat and padding', () => {
    const b = three();
    expect(b.repeat(2).get('uid')).toEqual(['a', 'a', 'b', 'b', 'c', 'c']);
    expect(b.repeat(2, 'tiled').get('uid')).toEqual(['a', 'b', 'c', 'a', 'b', 'c']);
    const { batch, padSize } = b.padToDivisor(5);
    expect([batch.get('uid'), padSize]).toEqual([['a', 'b', 'c', 'a', 'b'], 2]);
    expect(batch.unpad(padSize)).toEqual(b);
    expect(b.slice(0, 1).padToDivisor(3).batch.get('uid')).toEqual(['a', 'a', 'a']);
    expect(b.padToDivisor(3)).toEqual({ batch: b, padSize: 0 });
  });

  test('concat puts the rows end to end, in columns of every kind', () => {
    const ids = { advantages: [3], uid: ['d'] };
    const b = Batch.concat([three(), Batch.fromSequences([[1]], [[2]], ids), three().slice(0, 1)]);
    expect(b.get('uid')).toEqual(['a', 'b', 'c', 'd', 'a']);
    expect([...b.get('advantages')]).toEqual([0.5, -1, 2, 3, 0.5]);
    expect([...b.get('tokens')]).toEqual([1, 2, 7, 3, 8, 9, 4, 5, 6, 1, 2, 1, 2, 7]);
  });

  test('concat names the column that is missing', () => {
    const b = three();
    expect(() => Batch.concat([b, b.drop('uid')])).toThrow(/batch 1 lacks column 'uid'/);
    expect(() => Batch.concat([b.drop('uid'), b])).toThrow(/batch 0 lacks column 'uid'/);
    expect(() => Batch.concat([])).toThrow(/at least one/);
  });

  test('a large batch is quick to reorder', () => {
    const prompts = Array.from({ length: 4096 }, () => new Int32Array(500).fill(1));
    const responses = Array.from({ length: 4096 }, () => new Int32Array(500).fill(2));
    const b = Batch.fromSequences(prompts, responses);
    const start = performance.now();
    b.reorder([...Array(4096).keys()].reverse());
    expect(performance.now() - start).toBeLessThan(2000);
  });
});

test('the conformance batches are cut into rows without help', () => {
  const dir = path.join(__dirname, '../../fixtures/conformance/models/qwen3_headdim');
  const file = readFileSync(path.join(dir, 'batch.safetensors'));
  const headerLength = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + headerLength).toString());
  const column = (name: string): BigInt64Array => {
    const [from, to] = header[name].data_offsets;
    const bytes = new Uint8Array(file.subarray(8 + headerLength + from, 8 + headerLength + to));
    return new BigInt64Array(bytes.buffer, 0, bytes.length / 8);
  };
  const [B, R] = header.responses.shape;
  const p = { inputIds: column('input_ids'), attentionMask: column('attention_mask'), responseLength: R };
  const b = Batch.fromPadded(p);
  expect(b.size).toBe(B);
  const withMask = Batch.fromPadded({ ...p, responseMask: column('response_mask') });
  expect([...withMask.get('responseMask')].includes(0)).toBe(true);
  expect([...withMask.toPadded('responseMask', R)]).toEqual([...column('response_mask')].map(Number));
});

it('a column that is taken over may come from another realm, as native arrays do under some loaders', () => {
  const foreign = runInNewContext('Float32Array.of(1, 2, 3)') as Float32Array;
  const batch = Batch.fromSequences([[1], [2]], [[3, 4], [5]]).with({ advantages: foreign }, { adopt: true });
  expect([...batch.take([1, 0, 1]).get('advantages')]).toEqual([3, 1, 2, 3]);
  expect([...Batch.concat([batch, batch]).get('advantages')]).toEqual([1, 2, 3, 1, 2, 3]);
});
