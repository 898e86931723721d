import { Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { isDeepStrictEqual } from 'node:util';
import { FrameReader, FrameWriter, LONGEST_FRAME } from '../../../ts/worker/frames';
import { gathered, Landing, land } from '../../../ts/worker/message_arrays';
import { decodeHead, encodeMessage } from '../../../ts/worker/message_codec';

interface Message {
  type: string;
  [key: string]: unknown;
}

const MiB = 2 ** 20;
const HIGH_WATER = 16 * 1024;

/** A stream that takes one write after another when told to, and keeps what it took. */
class Gate extends Writable {
  readonly taken: Buffer[] = [];
  #open: boolean;
  #waiting: (() => void) | null = null;

  constructor(open: boolean) {
    super({ highWaterMark: HIGH_WATER });
    this.#open = open;
  }

  override _writev(chunks: { chunk: Buffer }[], done: () => void): void {
    for (const { chunk } of chunks) this.taken.push(chunk);
    if (this.#open) done();
    else this.#waiting = done;
  }

  /** Takes one more write. Whether there was one. */
  step(): boolean {
    const done = this.#waiting;
    this.#waiting = null;
    done?.();
    return done !== null;
  }

  get received(): Buffer {
    return Buffer.concat(this.taken);
  }
}

const small: Message = {
  type: 'result',
  requestId: 3,
  value: {
    logProbs: Float32Array.of(-0.5, Number.NaN, -0),
    mask: Uint8Array.of(1, 0, 1),
    seeds: BigUint64Array.of(2n ** 64n - 1n),
    entropy: null,
    metrics: [{ pg_loss: 0.1 }],
  },
};

const numbers = Float64Array.from({ length: 200_000 }, (_, i) => i / 3); // longer than a frame
const large: Message = {
  type: 'callEngine',
  args: [
    { tokens: Int32Array.from({ length: 20_000 }, (_, i) => i), numbers, again: numbers },
    'x'.repeat(2_000_000),
    new Uint8Array(MiB).fill(7).subarray(5, 100_000),
  ],
};

async function written(...messages: Message[]): Promise<Buffer> {
  const gate = new Gate(true);
  const writer = new FrameWriter<Message>(gate);
  for (const message of messages) writer.send(message);
  writer.end();
  await finished(gate);
  return gate.received;
}

function read(bytes: Buffer, cut: number): Message[] {
  const reader = new FrameReader<Message>();
  const messages: Message[] = [];
  for (let at = 0; at < bytes.length; at += cut) messages.push(...reader.push(bytes.subarray(at, at + cut)));
  return messages;
}

/** Typed arrays by type and bytes, whatever realm they are of. */
function plain(value: unknown): unknown {
  if (ArrayBuffer.isView(value)) {
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('latin1');
    return `${Object.prototype.toString.call(value)} ${bytes}`;
  }
  if (typeof value !== 'object' || value === null) return value;
  return Object.entries(value).map(([key, item]) => [key, plain(item)]);
}

describe('frames', () => {
  test.each([1, 7, 4096])('messages keep order and types, read %i bytes at a time', async (cut) => {
    const messages = cut === 1 ? [small, small] : [small, large, small, large];
    const received = read(await written(...messages), cut);
    expect(received).toHaveLength(messages.length);
    for (const [i, message] of messages.entries())
      expect(isDeepStrictEqual(plain(received[i]), plain(message))).toBe(true);
  });

  test('an array that is there twice is sent once, and none is copied first', () => {
    const { head, segments } = encodeMessage(large);
    expect(segments.map(({ byteLength }) => byteLength)).toEqual([80_000, 1_600_000, 99_995]);
    expect(segments[1]?.buffer).toBe(numbers.buffer);
    const decoded = decodeHead(head).message as { args: [{ numbers: Float64Array; again: Float64Array }] };
    expect(decoded.args[0].again).toBe(decoded.args[0].numbers);
  });

  test('many short arrays are gathered, and come as views of one buffer', async () => {
    const types = [Int8Array, Uint16Array, Int32Array, Float32Array, Float64Array, BigInt64Array];
    const arrays = Array.from({ length: 30_000 }, (_, i) => {
      const Type = types[i % types.length] as Int32ArrayConstructor;
      const numbers = Array.from({ length: i % 7 }, (_, k) => i + k);
      return Type === (BigInt64Array as unknown)
        ? BigInt64Array.from(numbers.map(BigInt))
        : Type.from(numbers);
    });
    arrays.push(new Int32Array(16_383).fill(3)); // just short enough
    const message = { type: 'result', arrays };
    const encoded = encodeMessage(message);
    expect(encoded.segments.length).toBeLessThan(4);
    const [received] = read(await written(message), 100_000) as [typeof message];
    expect(isDeepStrictEqual(plain(received), plain(message))).toBe(true);
    const filled = received.arrays.filter(({ length }) => length > 0);
    expect(new Set(filled.map(({ buffer }) => buffer)).size).toBe(1);
  });

  test('what cannot be sent throws and leaves nothing behind', () => {
    const gate = new Gate(true);
    const writer = new FrameWriter<Message>(gate);
    expect(() => writer.send({ type: 'result', value: () => {} })).toThrow(/could not be cloned/);
    writer.send(small);
    expect(read(gate.received, 100)).toEqual([small]);
  });

  test('a reader that is slow holds the writer: beside the arrays themselves there is one frame', async () => {
    const tokens = new Float32Array((64 * MiB) / 4);
    const before = process.memoryUsage().arrayBuffers;
    const gate = new Gate(false);
    const writer = new FrameWriter<Message>(gate);
    for (let i = 0; i < 4; i++) writer.send({ type: 'callEngine', tokens });
    expect(gate.writableLength).toBeLessThan(HIGH_WATER + LONGEST_FRAME + 1024);
    while (gate.taken.length < 100) {
      expect(gate.step()).toBe(true);
      await new Promise((resolve) => setImmediate(resolve));
      await new Promise((resolve) => setImmediate(resolve));
      expect(gate.writableLength).toBeLessThan(HIGH_WATER + LONGEST_FRAME + 1024);
    }
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(8 * MiB);
  });

  test('a reader that keeps up leaves time for all else: timers fire between frames', async () => {
    const gate = new Gate(true);
    const writer = new FrameWriter<Message>(gate);
    let turns = 0;
    const timer = setInterval(() => turns++, 0);
    writer.send({ type: 'callEngine', tokens: new Uint8Array(256 * MiB) });
    writer.end();
    await finished(gate);
    clearInterval(timer);
    expect(turns).toBeGreaterThan(2);
  });

  test('a heartbeat passes by a long message, between two of its frames; other messages wait', async () => {
    const gate = new Gate(false);
    const writer = new FrameWriter<Message>(gate);
    writer.send(large);
    writer.send(small);
    expect(writer.busy).toBe(true);
    writer.sendNow({ type: 'heartbeat' });
    writer.sendNow({ type: 'abort', reason: 'y'.repeat(LONGEST_FRAME) }); // too long to pass by anything
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    do {
      // A drained stream is written to in the next turn, which may begin before or after ours; timers may run twice before it.
      await turn();
      await turn();
    } while (gate.step() || writer.busy);
    expect(writer.busy).toBe(false);
    const received = read(gate.received, 10_000);
    expect(received.map(({ type }) => type)).toEqual(['heartbeat', 'callEngine', 'result', 'abort']);
    expect(isDeepStrictEqual(plain(received[1]), plain(large))).toBe(true);
  });

  const frame = (kind: number, payload: Buffer, length = payload.length): Buffer => {
    const header = Buffer.alloc(8);
    header.writeUInt32LE(length);
    header.writeUInt32LE(kind, 4);
    return Buffer.concat([header, payload]);
  };
  const size = (bytes: number): Buffer => {
    const buffer = Buffer.alloc(8);
    buffer.writeBigUInt64LE(BigInt(bytes));
    return buffer;
  };
  /** The head of a message that has short arrays, which says that there are none. */
  const withoutShortArrays = Buffer.from(encodeMessage({ few: Int32Array.of(1, 2) }).head);
  withoutShortArrays.writeDoubleLE(0, withoutShortArrays.length - 8);
  withoutShortArrays.writeDoubleLE(withoutShortArrays.length - 16, withoutShortArrays.length - 16);
  test.each([
    [
      'bytes of something else',
      Buffer.from('GET / HTTP/1.1\r\n\r\n'),
      /^a frame of kind \d+ and length \d+$/,
    ],
    ['a frame without an end', frame(1, Buffer.alloc(0), 2 ** 32 - 1), /length 4294967295/],
    ['a frame of more than 2^20 bytes', frame(2, Buffer.alloc(0), 2 ** 20 + 1), /length 1048577/],
    ['an empty frame', frame(1, Buffer.alloc(0)), /length 0/],
    ['a frame of a few bytes', frame(1, Buffer.from('garbage')), 'a head of 7 bytes'],
    ['a frame that V8 cannot read', frame(1, Buffer.alloc(40)), /Unable to deserialize/],
    [
      'short arrays that are not there',
      frame(1, Buffer.alloc(40, 63)),
      /^short arrays at \S+ of \S+ bytes in a head of 40$/,
    ],
    [
      'short arrays beyond those that are there',
      frame(1, withoutShortArrays),
      'an array beyond the end of its message',
    ],
    ['a number for a message', frame(1, Buffer.from(encodeMessage(5).head)), /no message/],
    ['an object without a type', frame(1, Buffer.from(encodeMessage({}).head)), /no message/],
    ['a head of no bytes', frame(2, size(0)), /claims 0 bytes/],
    ['a head of more than 2^28 bytes', frame(2, size(2 ** 28 + 1)), /claims 268435457 bytes/],
    ['a head of 2^50 bytes', frame(2, size(2 ** 50)), /claims 1125899906842624 bytes/],
    [
      'more than the message has',
      frame(
        2,
        Buffer.concat([
          size(encodeMessage({}).head.length),
          Buffer.from(encodeMessage({}).head),
          Buffer.alloc(9),
        ]),
      ),
      'a frame that is longer than its message',
    ],
    ['segments in a short message', frame(1, Buffer.from(encodeMessage({ numbers }).head)), /segments/],
  ])('%s is refused', (_what, bytes, message) => {
    expect(() => read(bytes, 3)).toThrow(message);
  });
});

test.each([3, 40_000])('an array in pieces of %i elements is received as one', async (length) => {
  const pieces = [1, 2, 3].map((start) => Int32Array.from({ length }, (_, i) => start + i));
  const tokens = gathered([...pieces, new Int32Array(0)], new Int32Array(0));
  const [message] = read(await written({ type: 'callEngine', tokens, after: Float32Array.of(0.5) }), 1000);
  expect(message?.tokens).toEqual(Int32Array.from(pieces.flatMap((piece) => [...piece])));
  expect(message?.after).toEqual(Float32Array.of(0.5));
});

test.each([7, 100_003])(
  'the arrays of a message that lands go where its receiver says, in parts of %i bytes',
  async (cut) => {
    const logProbs = Float32Array.from({ length: 50_000 }, (_, i) => -i / 3);
    const entropy = Float32Array.of(1, 2, 3);
    const value = { logProbs, unwanted: numbers, entropy, none: new Int32Array(0), absent: null };
    const bytes = await written({ type: 'result', lands: true, value }, small);
    const whole = new Float32Array(50_003);
    const reader = new FrameReader<Message>(({ value: head }) => {
      const arrays = head as Record<string, Landing>;
      const [first, second] = [whole.subarray(10, 20_010), whole.subarray(20_013)];
      land(arrays.logProbs as Landing, [second, new Float32Array(0), first, whole.subarray(0, 10)]);
      land(arrays.entropy as Landing, [whole.subarray(20_010, 20_013)]);
    });
    const received: Message[] = [];
    for (let at = 0; at < bytes.length; at += cut)
      received.push(...reader.push(bytes.subarray(at, at + cut)));
    expect(received).toEqual([expect.objectContaining({ type: 'result' }), small]);
    const second = logProbs.subarray(0, 29_990);
    const first = logProbs.subarray(29_990, 49_990);
    expect(whole).toEqual(Float32Array.from([...logProbs.subarray(49_990), ...first, ...entropy, ...second]));
  },
);

test('an array that does not fit its place is refused before a byte is written', () => {
  const whole = new Float32Array(4);
  expect(() => land(new Landing('Float32Array', 5, 20), [whole])).toThrow(
    'an array for 4 elements has 5 of Float32Array',
  );
  expect(() => land(new Landing('Int32Array', 4, 16), [whole])).toThrow(
    'an array for 4 of Float32Array elements has 4 of Int32Array',
  );
  expect(() => land(Float32Array.of(1, 2, 3), [whole])).toThrow('an array for 4 elements has 3');
  expect([...whole]).toEqual([0, 0, 0, 0]);
});
