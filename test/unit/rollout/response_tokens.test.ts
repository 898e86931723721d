import { ResponseTokens } from '../../../ts/rollout/native/response_tokens';

const span = (version: number, ...tokens: number[]) => ({
  tokens: Int32Array.from(tokens),
  logProbs: Float32Array.from(tokens, (token) => -token),
  version,
});

test('what came is read once, cut where the version changes', () => {
  const response = new ResponseTokens(false);
  expect(response.next()).toBeNull();
  response.append(span(1, 5));
  response.append(span(1, 6, 7));
  response.append(span(2, 8));
  expect(response.next()).toEqual(span(1, 5, 6, 7));
  response.append(span(2, 9));
  expect(response.next()).toEqual(span(2, 8, 9));
  expect(response.next()).toBeNull();
  expect(response.versions).toEqual([
    { version: 1, start: 0, end: 3 },
    { version: 2, start: 3, end: 5 },
  ]);
});

test('the whole takes no more memory than its tokens, and no array of a message is kept', () => {
  const response = new ResponseTokens(false);
  const message = new Int32Array(3000);
  for (let i = 0; i < 3000; i++) {
    message[i] = i;
    response.append({
      tokens: message.subarray(i, i + 1),
      logProbs: Float32Array.of(-i),
      version: 0,
    });
  }
  message.fill(-1);
  const { tokens, logProbs } = response.whole();
  expect(tokens).toEqual(Int32Array.from({ length: 3000 }, (_, i) => i));
  expect(logProbs[2999]).toBe(-2999);
  expect(tokens.buffer.byteLength + logProbs.buffer.byteLength).toBe(8 * 3000);
});

test('the most likely tokens go with the tokens', () => {
  const response = new ResponseTokens(true);
  const top = (token: number) => [{ token, logProb: -1 }];
  response.append({ ...span(1, 5), topLogProbs: [top(5)] });
  response.append({ ...span(2, 6), topLogProbs: [top(6)] });
  expect(response.next()?.topLogProbs).toEqual([top(5)]);
  expect(response.next()?.topLogProbs).toEqual([top(6)]);
  expect(response.topLogProbs).toEqual([top(5), top(6)]);
});

test('a response that comes in one piece is that piece', () => {
  const response = new ResponseTokens(false);
  const piece = span(1, 5, 6);
  response.append(piece, true);
  expect(response.whole().tokens).toBe(piece.tokens);
  expect(response.whole().logProbs).toBe(piece.logProbs);
  expect(response.next()).toEqual(piece);
});

test('a response that comes in one piece does not keep the message that it is a part of', () => {
  const response = new ResponseTokens(false);
  const message = new ArrayBuffer(2 ** 16);
  const piece = {
    tokens: new Int32Array(message, 64, 2).fill(7),
    logProbs: new Float32Array(message, 128, 2).fill(-1),
    version: 1,
  };
  response.append(piece, true);
  const { tokens, logProbs } = response.whole();
  expect([tokens, logProbs]).toEqual([Int32Array.of(7, 7), Float32Array.of(-1, -1)]);
  expect([tokens.buffer.byteLength, logProbs.buffer.byteLength]).toEqual([8, 8]);
  expect(response.next()).toEqual(piece);
});

test('the first of several pieces is copied', () => {
  const response = new ResponseTokens(false);
  const piece = span(1, 5, 6);
  response.append(piece);
  piece.tokens.fill(-1);
  expect(response.whole().tokens).toEqual(Int32Array.of(5, 6));
});
