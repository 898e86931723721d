// Responses that are kept in files, and requests that are answered from them.
import { execFileSync } from 'node:child_process';
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { RecordedRollout } from '../../../ts/rollout/recorded/recorded_rollout';
import { requestKey } from '../../../ts/rollout/recorded/request_key';
import { StepRecording } from '../../../ts/rollout/recorded/step_recording';
import type { RolloutRequest, RolloutResult, TokenSpan } from '../../../ts/rollout/request';
import { ScriptedEngine } from '../../helpers/scripted_engine';

const MODEL = '/models/tiny';
let directory: string;
let file: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'recorded-'));
  file = join(directory, 'project', 'run', '3.jsonl');
});
afterEach(() => rmSync(directory, { recursive: true }));

const request = (more: Partial<RolloutRequest> = {}): RolloutRequest => ({
  promptIds: [5, 6, 7],
  sampling: { maxNewTokens: 8, temperature: 0.7, seed: 11n },
  ...more,
});

/** Answers with the number of the request, over and over. */
const counting = (): ScriptedEngine => new ScriptedEngine((_, index) => ({ tokens: [index, index, index] }));

async function recorded(engine = counting()): Promise<{ rollout: RecordedRollout; done(): void }> {
  const recording = await StepRecording.open(file, MODEL);
  return { rollout: new RecordedRollout(engine, recording), done: () => recording.close() };
}

test('a request is the same as another one where all that its answer depends on is', () => {
  const { sampling } = request();
  const image = { height: 1, width: 2, pixels: new Uint8Array([1, 2, 3, 4, 5, 6]) };
  const same = [
    request(),
    request({ promptIds: Int32Array.of(5, 6, 7), images: [] }),
    request({ sampling: { seed: 11n, temperature: 0.7, maxNewTokens: 8 } }),
    request({ priority: 3, deadlineMs: 1000, session: 'x', cacheSalt: 'y' }),
  ];
  expect(new Set(same.map(requestKey)).size).toBe(1);
  const others = [
    request(),
    request({ promptIds: [5, 6] }),
    request({ promptIds: [5, 6, 8] }),
    request({ sampling: { ...sampling, seed: 12n } }),
    request({ sampling: { maxNewTokens: 8, temperature: 0.7 } }),
    request({ sampling: { ...sampling, topLogProbs: 2 } }),
    request({ sampling: { ...sampling, logitBias: new Map([[5, 1]]) } }),
    request({ sampling: { ...sampling, logitBias: new Map([[5, 2]]) } }),
    request({ grammar: { kind: 'json-schema', schema: '{}' } }),
    request({ images: [image] }),
    request({ images: [{ ...image, height: 2, width: 1 }] }),
    request({ images: [{ ...image, pixels: new Uint8Array([1, 2, 3, 4, 5, 7]) }] }),
  ];
  expect(new Set(others.map(requestKey)).size).toBe(others.length);
  expect(requestKey(request({ sampling: { ...sampling, constraint: { next: () => null } } }))).toBeNull();
});

test('what was answered once is answered again, by a process of another time', async () => {
  const first = await recorded();
  const asked = [request(), request({ promptIds: [9] }), request()];
  const made = await Promise.all(asked.map((one) => first.rollout.submit(one).result));
  first.done();
  // Twice the same at a time: both are generated, and the first one is kept.
  expect(first.rollout).toMatchObject({ asked: 3, recalled: 0 });

  const engine = counting();
  const again = await recorded(engine);
  const recalled = await Promise.all(asked.map((one) => again.rollout.submit(one).result));
  expect(recalled[0]).toEqual({ ...made[0], cachedTokens: 0 });
  expect(recalled[1]).toEqual({ ...made[1], cachedTokens: 0 });
  expect(recalled[2]).toEqual(recalled[0]);
  expect(again.rollout).toMatchObject({ asked: 3, recalled: 3 });
  expect(engine.requests).toHaveLength(0);
  // Another request is generated, and in the file from then on.
  const other = await again.rollout.submit(request({ promptIds: [1] })).result;
  again.done();
  const third = await recorded(engine);
  expect((await third.rollout.submit(request({ promptIds: [1] })).result).tokens).toEqual(other.tokens);
  expect(engine.requests).toHaveLength(1);
  third.done();
});

test('an answer far longer than what is read of a file at a time', async () => {
  const tokens = Int32Array.from({ length: 100_000 }, (_, i) => i);
  const first = await StepRecording.open(file, MODEL);
  first.add('long', {
    tokens,
    logProbs: Float32Array.from(tokens, (i) => -i),
    finishReason: 'length',
    versions: [{ version: 0, start: 0, end: tokens.length }],
    cachedTokens: 0,
  });
  first.close();
  const again = await StepRecording.open(file, MODEL);
  expect(again.get('long')?.tokens).toEqual(tokens);
  again.close();
});

test('every part of an answer is kept to the bit, and its spans are those of its versions', async () => {
  const result: RolloutResult = {
    tokens: Int32Array.of(3, 1, 2 ** 31 - 1),
    logProbs: Float32Array.of(-0, -1e-45, -3.4e38),
    topLogProbs: [[{ token: 3, logProb: -0.1 }], [], [{ token: 1, logProb: -2 }]],
    promptLogProbs: Float32Array.of(Number.NaN, -0.3),
    routedExperts: Uint8Array.of(1, 2, 3),
    finishReason: 'stop',
    stopText: 'ü\n',
    versions: [
      { version: 4, start: 0, end: 2 },
      { version: 5, start: 2, end: 3 },
    ],
    cachedTokens: 7,
  };
  const written = await StepRecording.open(file, MODEL);
  written.add(requestKey(request()) as string, result);
  written.close();
  const { rollout, done } = await recorded();
  const handle = rollout.submit(request());
  const read = await handle.result;
  expect(read).toEqual({ ...result, cachedTokens: 0 });
  expect(Object.is(read.logProbs[0], -0)).toBe(true);
  const spans: TokenSpan[] = [];
  for await (const span of handle) spans.push(span);
  expect(spans.map(({ version, tokens }) => [version, [...tokens]])).toEqual([
    [4, [3, 1]],
    [5, [2 ** 31 - 1]],
  ]);
  expect(spans[1]?.topLogProbs).toEqual([[{ token: 1, logProb: -2 }]]);
  done();
});

test('what was cut short is not kept, nor what a function has a hand in', async () => {
  const engine = new ScriptedEngine(() => ({ tokens: [1], finishReason: 'abort' }));
  const { rollout, done } = await recorded(engine);
  await rollout.submit(request()).result;
  await rollout.submit(request()).result;
  const constrained = { ...request().sampling, constraint: { next: () => null } };
  await rollout.submit(request({ sampling: constrained })).result;
  done();
  expect(engine.requests).toHaveLength(3);
  expect(existsSync(file)).toBe(false);
});

describe('a file', () => {
  async function write(): Promise<void> {
    const { rollout, done } = await recorded();
    await rollout.submit(request()).result;
    done();
  }

  test('that a killed run left is read up to its last whole line, and goes on there', async () => {
    await write();
    const whole = readFileSync(file, 'utf8');
    appendFileSync(file, whole.split('\n')[1]?.slice(0, 40) as string);
    const { rollout, done } = await recorded();
    await rollout.submit(request()).result;
    expect(rollout.recalled).toBe(1);
    await rollout.submit(request({ promptIds: [2] })).result;
    done();
    expect(readFileSync(file, 'utf8').startsWith(whole)).toBe(true);
    const again = await recorded();
    await again.rollout.submit(request({ promptIds: [2] })).result;
    expect(again.rollout.recalled).toBe(1);
    again.done();
    // It may have got no further than into the first line.
    writeFileSync(file, whole.slice(0, 9));
    await write();
    expect(readFileSync(file, 'utf8')).toBe(`${whole.slice(0, 9)}\n${whole}`);
    const last = await recorded();
    await last.rollout.submit(request()).result;
    expect(last.rollout.recalled).toBe(1);
    last.done();
  });

  test('in which another run has ended in the middle of a line, since it was opened, goes on behind it', async () => {
    await write();
    const line = readFileSync(file, 'utf8').split('\n')[1] as string;
    const { rollout, done } = await recorded();
    await rollout.submit(request({ promptIds: [2] })).result;
    appendFileSync(file, line.slice(0, 40));
    await rollout.submit(request({ promptIds: [3] })).result;
    done();
    const again = await recorded();
    for (const promptIds of [[2], [3]]) await again.rollout.submit(request({ promptIds })).result;
    again.done();
    expect(again.rollout.recalled).toBe(2);
  });

  test.each([
    [
      'of another model',
      (text: string) => text.replace(MODEL, '/models/other'),
      /line 1: expected responses of the model \/models\/tiny, but they are of \/models\/other/,
    ],
    ['of something else', () => '{"a": 1}\n', /line 1: expected the model of the responses, but version: /],
    ['that is not JSON', (text: string) => `${text}x\n`, /line 3: expected a response, but it is not JSON/],
    [
      'with a log-probability too few',
      (text: string) => text.replace(/"logProbs":"[^"]*"/, '"logProbs":""'),
      /line 2: expected a response, but one log-probability a token/,
    ],
    [
      'with half a token',
      (text: string) => text.replace(/"tokens":"[^"]*"/, '"tokens":"AAA="'),
      /line 2: expected a response, but tokens: /,
    ],
  ])('%s is an error that names it, and stays as it is', async (_, change, message) => {
    await write();
    const text = change(readFileSync(file, 'utf8'));
    writeFileSync(file, text);
    await expect(recorded()).rejects.toMatchObject({ code: 'IO', message: expect.stringMatching(message) });
    await expect(recorded()).rejects.toThrow(`${file}: line`);
    await expect(recorded()).rejects.toThrow('give another skip.rollout.dump_dir');
    expect(readFileSync(file, 'utf8')).toBe(text);
  });

  test('is not touched while its responses are taken', async () => {
    await write();
    appendFileSync(file, '{"key":');
    const { mtimeNs } = statSync(file, { bigint: true });
    const { rollout, done } = await recorded();
    await rollout.submit(request()).result;
    done();
    expect(rollout.recalled).toBe(1);
    expect(statSync(file, { bigint: true }).mtimeNs).toBe(mtimeNs);
  });

  test('that two runs begin at once has what both add', async () => {
    const both = [await recorded(), await recorded()];
    for (const [i, { rollout }] of both.entries()) await rollout.submit(request({ promptIds: [i] })).result;
    for (const { done } of both) done();
    const { rollout, done } = await recorded();
    for (const i of both.keys()) await rollout.submit(request({ promptIds: [i] })).result;
    done();
    expect(rollout.recalled).toBe(2);
  });

  test('with a line that another run is writing keeps it', async () => {
    await write();
    const text = readFileSync(file, 'utf8');
    const line = `${text.split('\n')[1]?.replace(/"key":"[^"]*"/, '"key":"other"')}\n`;
    appendFileSync(file, line.slice(0, 40));
    const { rollout, done } = await recorded();
    appendFileSync(file, line.slice(40));
    await rollout.submit(request({ promptIds: [2] })).result;
    done();
    const after = readFileSync(file, 'utf8');
    expect(after.startsWith(text + line)).toBe(true);
    expect(after.trimEnd().split('\n')).toHaveLength(4);
  });

  test.each([
    ['a directory', () => mkdirSync(file, { recursive: true })],
    [
      'a FIFO',
      () => {
        mkdirSync(dirname(file), { recursive: true });
        execFileSync('mkfifo', [file]);
      },
    ],
  ])('that is %s is an error that names it', async (what, make) => {
    make();
    await expect(recorded()).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringContaining(`${file}: expected a file, but it is ${what}`),
    });
  });

  test('of somebody else without an end of line stays as it is', async () => {
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, '{"notes": [1, 2]}');
    await expect(recorded()).rejects.toThrow(`${file}: line 1: expected the model of the responses`);
    expect(readFileSync(file, 'utf8')).toBe('{"notes": [1, 2]}');
  });

  test('on a full disk keeps what it has', async () => {
    const { rollout } = await recorded();
    mkdirSync(dirname(file), { recursive: true });
    symlinkSync('/dev/full', file);
    await expect(rollout.submit(request()).result).rejects.toMatchObject({
      code: 'NO_SPACE',
      message: expect.stringMatching(/the disk is full \(ENOSPC.*\); the responses that it has stay$/),
    });
  });

  test('that cannot be written fails the request, and those behind it: half a line may be there', async () => {
    const { rollout } = await recorded();
    const blocked = join(directory, 'project');
    writeFileSync(blocked, 'a file');
    const failure = { code: 'IO', message: expect.stringContaining(`write ${file}`) };
    await expect(rollout.submit(request()).result).rejects.toMatchObject(failure);
    rmSync(blocked);
    await expect(rollout.submit(request({ promptIds: [2] })).result).rejects.toMatchObject(failure);
    expect(existsSync(file)).toBe(false);
  });
});
