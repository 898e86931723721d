import { Placement } from '../../../ts/rollout/native/placement';

const prompt = (length: number, begin: number, end: number): Int32Array =>
  Int32Array.from({ length }, (_, i) => (i < 300 ? begin + (i % 7) : end * 1000 + i));

/** Requests by rank, of so many prompts and samples of each, all there at a time. */
function loads(ranks: number, prompts: number, samples: number, begins: (i: number) => number): number[] {
  const placement = new Placement(ranks);
  const counts: number[] = new Array(ranks).fill(0);
  for (let i = 0; i < prompts; i++) {
    const promptIds = prompt(400, begins(i), i);
    for (let n = 0; n < samples; n++) {
      const rank = placement.place({ promptIds, request: {} });
      counts[rank] = (counts[rank] as number) + 1;
    }
  }
  return counts;
}

const spread = (counts: number[]): number => Math.max(...counts) - Math.min(...counts);

test.each([
  [8, 64, 16],
  [16, 1024, 5],
  [8, 16, 4],
  [4, 4, 8],
])(
  '%i ranks, %i prompts of %i samples: even, also where all begin with one system prompt',
  (ranks, prompts, samples) => {
    expect(spread(loads(ranks, prompts, samples, (i) => i))).toBeLessThanOrEqual(samples);
    expect(spread(loads(ranks, prompts, samples, () => 1))).toBeLessThanOrEqual(samples + 4);
  },
);

test('samples of a prompt share a rank until it has far too many', () => {
  const counts = loads(4, 1, 16, () => 1);
  expect(counts).toEqual([16, 0, 0, 0]);
  expect(spread(loads(4, 1, 200, () => 1))).toBeLessThan(60);
});

test('a next turn goes where the one before it was, while that rank is not busier', () => {
  const placement = new Placement(3);
  const [first, other] = [prompt(310, 1, 1), prompt(310, 2, 2)];
  const place = (promptIds: Int32Array): number => placement.place({ promptIds, request: {} });
  const [a, b] = [place(first), place(other)];
  expect([a, b]).toEqual([0, 1]);
  placement.left(a);
  placement.left(b);
  expect(place(Int32Array.from([...other, 5, 6, 7]))).toBe(b);
  for (let i = 0; i < 4; i++) place(other);
  // Five there, none on the others: another prompt that begins so goes elsewhere.
  expect(place(Int32Array.from([...other, 8]))).toBe(0);
});

test('a conversation stays together by its name, and salts keep prompts apart', () => {
  const placement = new Placement(2);
  const ids = prompt(300, 1, 1);
  const place = (request: { session?: string; cacheSalt?: string }): number =>
    placement.place({ promptIds: ids, request });
  expect([place({ session: 'x' }), place({ session: 'x' }), place({ session: 'y' })]).toEqual([0, 0, 1]);
  expect([place({ cacheSalt: 'u' }), place({ cacheSalt: 'v' })]).toEqual([1, 0]);
});

test('a conversation leaves its rank where that has sixteen more than twice as many as another', () => {
  const placement = new Placement(2);
  const place = (session: string): number =>
    placement.place({ promptIds: prompt(3, 1, 1), request: { session } });
  for (let i = 0; i < 20; i++) expect([place('x'), place('y')]).toEqual([0, 1]);
  // 20 there: up to 56 here.
  for (let i = 20; i <= 56; i++) expect(place('x')).toBe(0);
  expect(place('x')).toBe(1);
});

test('of very many conversations those are remembered that spoke last', () => {
  const placement = new Placement(2);
  const place = (session: string): number => {
    const rank = placement.place({ promptIds: prompt(3, 1, 1), request: { session } });
    placement.left(rank);
    return rank;
  };
  placement.place({ promptIds: prompt(3, 1, 1), request: { session: 'stays' } });
  expect([place('old'), place('spoke')]).toEqual([1, 1]);
  placement.left(0);
  for (let i = 0; i < 40_000; i++) place(`first ${i}`);
  expect(place('spoke')).toBe(1);
  for (let i = 0; i < 40_000; i++) place(`second ${i}`);
  expect([place('spoke'), place('old')]).toEqual([1, 0]);
});
