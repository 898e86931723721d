import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { AgentModel } from '../../../ts/agent/model/agent_model';
import { RetrieverClient } from '../../../ts/agent/search_r1/retriever_client';
import { actionOf, INVALID_ACTION, passagesText } from '../../../ts/agent/search_r1/rules';
import { searchEpisode } from '../../../ts/agent/search_r1/search_loop';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import { trajectoryBatch } from '../../../ts/agent/trajectory/trajectory_batch';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { scoreQaEm } from '../../../ts/reward/graders/qa_em';
import { ScriptedEngine } from '../../helpers/scripted_engine';
import { trajectoryOf } from './histories';

interface Episode {
  prompt: number[];
  outputs: number[][];
  target: string[];
  calls: number;
  response: number[];
  mask: number[];
  text: string;
  turns: number;
  active: boolean;
  validActions: number;
  validSearches: number;
  em: number;
  format: number;
  formatZero: number;
}

const directory = join(__dirname, '../../fixtures/search_r1');
const recorded = JSON.parse(readFileSync(join(directory, 'episodes.json'), 'utf8')) as {
  limits: Record<string, number>;
  topk: number;
  scores: { structure_format_score: number; final_format_score: number; retrieval_score: number };
  results: Record<string, { document: { contents: string }; score: number }[]>;
  episodes: Episode[];
};
const tokenizer = Tokenizer.load(directory);
const decode = (ids: ArrayLike<number>): string => tokenizer.decode(ids, { skipSpecialTokens: true });
const { limits } = recorded;
const options = {
  maxTurns: limits['max_turns'] as number,
  maxStartLength: limits['max_start_length'] as number,
  maxResponseLength: limits['max_response_length'] as number,
  maxObsLength: limits['max_obs_length'] as number,
  maxPromptLength: limits['max_prompt_length'] as number,
  stopAtTags: false,
};

let server: Server;
const requests: { queries: string[]; topk: number; return_scores: boolean }[] = [];
let answer: (body: (typeof requests)[number]) => { status: number; body: unknown };
const recordedAnswer: typeof answer = ({ queries }) => ({
  status: 200,
  body: { result: queries.map((query) => recorded.results[query]) },
});

beforeAll(async () => {
  server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const given = JSON.parse(Buffer.concat(parts).toString());
      requests.push(given);
      const { status, body } = answer(given);
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
});
afterAll(() => void server.close());
beforeEach(() => {
  requests.length = 0;
  answer = recordedAnswer;
});
const url = (): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}/retrieve`;

/** What the engine gives, as recorded; a stop text ends it at the token that completes it. */
function engineOf({ outputs }: Episode): ScriptedEngine {
  return new ScriptedEngine(({ sampling }, turn) => {
    const tokens = outputs[turn] as number[];
    for (let n = 1; n <= tokens.length; n++) {
      const stopText = sampling.stop?.find((stop) => decode(tokens.slice(0, n)).includes(stop));
      if (stopText !== undefined) return { tokens: tokens.slice(0, n), stopText };
    }
    return { tokens };
  });
}

async function play(
  episode: Episode,
  more: Partial<typeof options> = {},
  retriever = new RetrieverClient({ url: url(), topk: recorded.topk }),
) {
  const engine = engineOf(episode);
  const model = new AgentModel({ engine, tokenizer, sampling: { maxNewTokens: 500 }, seed: 1 });
  const played = await searchEpisode(model, retriever, Int32Array.from(episode.prompt), {
    ...options,
    ...more,
  });
  return { played, model, engine };
}

const PROMPT_END = '<|im_start|>assistant\n';

describe("Search-R1's loop on the same model outputs", () => {
  /** Whether tokenising the cut responses again, as the reference does, gives the ids that were sampled. */
  const isExact = (responses: string[], sampled: Int32Array[]): boolean =>
    responses.every(
      (text, k) => [...tokenizer.encode(text)].join() === [...(sampled[k] as Int32Array)].join(),
    );
  let exact = 0;
  afterAll(() => expect(exact).toBeGreaterThanOrEqual(30));

  test.each(recorded.episodes.map((episode, i) => [i, episode] as const))(
    'episode %i',
    async (_, episode) => {
      const { played, model } = await play(episode);
      expect(model.calls).toHaveLength(episode.calls);
      expect(played.segments.map(({ text }) => text).join('')).toBe(episode.text);
      expect({
        turns: played.actions,
        active: !played.finished,
        validActions: played.validActions,
        validSearches: played.validSearches,
      }).toEqual({
        turns: episode.turns,
        active: episode.active,
        validActions: episode.validActions,
        validSearches: episode.validSearches,
      });
      // Stretches of equal mask, as texts.
      const stretches = (mask: ArrayLike<number>, ids: ArrayLike<number>): [number, string][] => {
        const out: [number, number[]][] = [];
        for (let t = 0; t < ids.length; t++) {
          const last = out.at(-1);
          if (last?.[0] === mask[t]) last?.[1].push(ids[t] as number);
          else out.push([mask[t] as number, [ids[t] as number]]);
        }
        return out.map(([bit, part]) => [bit, decode(part)]);
      };
      const batch = trajectoryBatch([{ promptIds: episode.prompt, trajectory: trajectoryOf(model.calls) }]);
      expect(batch.size).toBe(1);
      expect([...batch.prompt(0)]).toEqual(episode.prompt);
      const responses = played.segments.filter(({ observation }) => !observation).map(({ text }) => text);
      if (
        isExact(
          responses,
          model.calls.map(({ tokens }) => tokens),
        )
      ) {
        exact++;
        expect([...batch.response(0)]).toEqual(episode.response);
        expect([...batch.get('responseMask')]).toEqual(episode.mask);
      }
      // A token that holds the end of a tag may hold more: it was sampled, so it stays.
      const texts = stretches(batch.get('responseMask'), batch.response(0)).map(([bit, part]) => [
        bit,
        bit ? part.replace(/(<\/(?:search|answer)>)<?$/, '$1') : part,
      ]);
      expect(texts).toEqual(stretches(episode.mask, episode.response));
      const prompt = tokenizer.decode(episode.prompt, { skipSpecialTokens: false });
      expect(prompt).toContain(PROMPT_END);
      const text = prompt + decode(batch.response(0));
      expect(scoreQaEm(text, episode.target)).toBeCloseTo(episode.em, 12);
      expect(scoreQaEm(text, episode.target)).toBeCloseTo(episode.formatZero, 12);
      const { structure_format_score, final_format_score, retrieval_score } = recorded.scores;
      const scores = {
        structureFormatScore: structure_format_score,
        finalFormatScore: final_format_score,
        retrievalScore: retrieval_score,
      };
      expect(scoreQaEm(text, episode.target, scores)).toBeCloseTo(episode.format, 12);
    },
  );

  test('what was sampled in other pieces keeps its own ids', async () => {
    const others = recorded.episodes.filter((_, i) => i % 5 === 4);
    let differ = 0;
    for (const episode of others) {
      const { model } = await play(episode);
      const [sequence] = joinCalls(model.calls);
      const response = [...(sequence?.tokens ?? [])].slice(episode.prompt.length);
      if (response.join() !== episode.response.join()) differ++;
      model.calls.forEach(({ tokens }, turn) => {
        expect([...tokens]).toEqual(episode.outputs[turn]?.slice(0, tokens.length));
      });
    }
    expect(differ).toBeGreaterThan(4);
  });

  test('with stop texts, responses end at their first tag: the same texts, but where one tag came within or after another', async () => {
    const differ: number[] = [];
    for (const [i, episode] of recorded.episodes.entries()) {
      const { played, engine } = await play(episode, { stopAtTags: true });
      expect(engine.requests[0]?.sampling.stop).toEqual(['</search>', '</answer>']);
      if (played.segments.map(({ text }) => text).join('') !== episode.text) differ.push(i);
    }
    expect(differ).toEqual([9, 13, 33, 37]);
  });

  test('queries of the same moment are one request; those asked are stripped, empty ones, too', async () => {
    const shared = new RetrieverClient({ url: url(), topk: 2 });
    await Promise.all([5, 5, 6].map((i) => play(recorded.episodes[i] as Episode, {}, shared)));
    expect(requests[0]).toEqual({
      queries: ['', '', expect.stringContaining('barrels')],
      topk: 2,
      return_scores: true,
    });
  });

  test('a context longer than max_prompt_length loses its beginning, and the turn is a sibling', async () => {
    const { model } = await play(recorded.episodes[11] as Episode, { maxPromptLength: 250 });
    expect(model.calls.at(-1)?.promptIds).toHaveLength(250);
    expect(joinCalls(model.calls).flatMap(({ turns }) => turns.map(({ call }) => call))).toEqual([
      0, 1, 2, 3,
    ]);
    expect(joinCalls(model.calls).length).toBeGreaterThan(1);
  });
});

describe('the retriever client', () => {
  const client = (): RetrieverClient => new RetrieverClient({ url: url(), topk: 3, retries: 1 });

  test('reads bare documents, too', async () => {
    answer = () => ({ status: 200, body: { result: [[{ id: '7', contents: '"T"\ntext' }]] } });
    expect(await client().search('x')).toEqual([{ id: '7', contents: '"T"\ntext' }]);
  });

  test('tries again when the server is busy, and says what it said when that does not help', async () => {
    let calls = 0;
    answer = () => (++calls === 1 ? { status: 503, body: 'busy' } : { status: 200, body: { result: [[]] } });
    expect(await client().search('x')).toEqual([]);
    answer = () => ({ status: 500, body: 'out of memory' });
    await expect(client().search('x')).rejects.toThrow(
      /retrieval server at .* failed: HTTP 500: "out of memory"/,
    );
  });

  test.each([
    [429, 2],
    [500, 2],
    [400, 1],
    [302, 1],
  ])(
    'a status of %i is answered to so many requests that may be tried once more: %i',
    async (status, count) => {
      answer = () => ({ status, body: 'no' });
      await expect(client().search('x')).rejects.toThrow(`HTTP ${status}`);
      expect(requests).toHaveLength(count);
    },
  );

  test('many queries are several requests', async () => {
    answer = ({ queries }) => ({
      status: 200,
      body: { result: queries.map((contents: string) => [{ contents }]) },
    });
    const small = new RetrieverClient({ url: url(), topk: 1, batch: 2 });
    const found = await Promise.all(['a', 'b', 'c', 'd', 'e'].map((query) => small.search(query)));
    expect(found).toEqual(['a', 'b', 'c', 'd', 'e'].map((contents) => [{ contents }]));
    expect(requests.map(({ queries }) => queries.length).sort()).toEqual([1, 2, 2]);
  });

  test.each([
    ['another protocol', { hits: [] }],
    ['too few results', { result: [] }],
    ['too many results', { result: [[], []] }],
    ['a passage without contents', { result: [[{ document: {}, score: 1 }]] }],
  ])('%s is an error', async (_, body) => {
    answer = () => ({ status: 200, body });
    await expect(client().search('x')).rejects.toMatchObject({ code: 'IO' });
  });

  test('a server that is not there is named', async () => {
    const other = createServer();
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const { port } = other.address() as AddressInfo;
    await new Promise((resolve) => other.close(resolve));
    const gone = new RetrieverClient({ url: `http://127.0.0.1:${port}/retrieve`, topk: 3, retries: 0 });
    await expect(gone.search('x')).rejects.toThrow(new RegExp(`127.0.0.1:${port}.*ECONNREFUSED`));
  });

  test('an abort does not wait for it', async () => {
    const controller = new AbortController();
    const waiting = client().search('x', controller.signal);
    controller.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
  });
});

test('texts', () => {
  expect(actionOf('a <answer> x </answer> <search>q</search>')).toEqual({ kind: 'answer', answer: 'x' });
  expect(actionOf('<search>q</answer>')).toEqual({ kind: 'invalid' });
  expect(passagesText([{ contents: '"T"\na\nb' }, { contents: 'only' }])).toBe(
    'Doc 1(Title: "T") a\nb\nDoc 2(Title: only) \n',
  );
  expect(INVALID_ACTION.startsWith('\nMy previous action is invalid.')).toBe(true);
});
