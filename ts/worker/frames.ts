import type { Writable } from 'node:stream';
import { bytesOf, Landing } from './message_arrays';
import { decodeHead, type EncodedMessage, type Expected, encodeMessage } from './message_codec';

// Messages as frames on a stream of bytes. A frame is a header, u32 little-endian length of what follows it, u8 kind, 3 zeros, and
// then either a whole short message or a part of a long one: u64 length of its head, head, segments (message_codec.ts). Short
// messages may come between the parts of a long one.

/** Of what follows a header. A signal of life waits for no more than one frame. */
export const LONGEST_FRAME = 2 ** 20;
/** Lists and texts of one message; arrays are not among them. */
const LONGEST_HEAD = 2 ** 28;

const HEADER_BYTES = 8;
const WHOLE = 1;
const PART = 2;

const TOO_LONG = 'a frame that is longer than its message';

interface Frame {
  kind: number;
  payload: Uint8Array;
}

const isShort = ({ head, segments }: EncodedMessage): boolean =>
  segments.length === 0 && head.length <= LONGEST_FRAME;

function* framesOf(encoded: EncodedMessage): Generator<Frame> {
  const { head, segments } = encoded;
  if (isShort(encoded)) {
    yield { kind: WHOLE, payload: head };
    return;
  }
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(head.length));
  for (const piece of [size, head, ...segments]) {
    for (let start = 0; start < piece.length; start += LONGEST_FRAME)
      yield { kind: PART, payload: piece.subarray(start, start + LONGEST_FRAME) };
  }
}

/** Writes messages in their order, a frame at a time, as fast as the stream takes them. */
export class FrameWriter<M> {
  readonly #stream: Writable;
  /** Messages of which frames are still to be written. */
  readonly #queue: Generator<Frame>[] = [];
  #ending = false;

  constructor(stream: Writable) {
    this.#stream = stream;
    // Not at once: a reader that keeps up drains a frame before the next timer or message has had its turn.
    stream.on('drain', () => setImmediate(() => this.#pump()));
  }

  /** The arrays of a message are read when their turn comes: they must stay as they are until then. @throws DataCloneError */
  send(message: M): void {
    this.#enqueue(encodeMessage(message));
  }

  /** A message that waits for no other, unless it is a long one itself. */
  sendNow(message: M): void {
    const encoded = encodeMessage(message);
    if (isShort(encoded)) this.#write({ kind: WHOLE, payload: encoded.head });
    else this.#enqueue(encoded);
  }

  /** Something is on its way already, or the other side does not read. */
  get busy(): boolean {
    return this.#stream.writableNeedDrain;
  }

  /** Ends the stream behind what has been sent. */
  end(): void {
    this.#ending = true;
    this.#pump();
  }

  #enqueue(encoded: EncodedMessage): void {
    this.#queue.push(framesOf(encoded));
    this.#pump();
  }

  #pump(): void {
    while (!this.#stream.writableNeedDrain) {
      const next = this.#queue[0]?.next();
      if (next === undefined) {
        if (this.#ending) this.#stream.end();
        return;
      }
      if (next.done) this.#queue.shift();
      else this.#write(next.value);
    }
  }

  #write({ kind, payload }: Frame): void {
    if (!this.#stream.writable) return;
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeUInt32LE(payload.length);
    header[4] = kind;
    this.#stream.cork();
    this.#stream.write(header);
    this.#stream.write(payload);
    this.#stream.uncork();
  }
}

/** Is told of a message whose arrays are about to come, and may say where each is to land. */
type OnHead = (message: unknown) => void;

/** Where bytes go: to memory, or nowhere (null). */
interface Target {
  length: number;
  bytes: Uint8Array | null;
}

const targetOf = (bytes: Uint8Array): Target => ({ length: bytes.length, bytes });

function targetsOf(expected: Expected): Target[] {
  if (!(expected instanceof Landing)) return [targetOf(expected)];
  const { into, bytes } = expected;
  if (into === null) return [{ length: bytes, bytes: null }];
  return into.filter((place) => place.length > 0).map((place) => targetOf(bytesOf(place)));
}

/** A long message in the making. */
class LongMessage {
  #message: unknown = null;
  #stage: 'size' | 'head' | 'segments' = 'size';
  /** To be filled one after another, from `#next` on. */
  #targets: Target[] = [targetOf(new Uint8Array(8))];
  #next = 0;
  #filled = 0;
  readonly #onHead: OnHead;

  constructor(onHead: OnHead) {
    this.#onHead = onHead;
  }

  /** Takes the next bytes. Whether the message is complete. */
  fill(bytes: Uint8Array): boolean {
    let rest = bytes;
    while (rest.length > 0) {
      const target = this.#targets[this.#next];
      if (target === undefined) throw new Error(TOO_LONG);
      const taken = rest.subarray(0, target.length - this.#filled);
      target.bytes?.set(taken, this.#filled);
      this.#filled += taken.length;
      rest = rest.subarray(taken.length);
      if (this.#filled === target.length) this.#advance(target);
    }
    return this.#next === this.#targets.length;
  }

  get message(): unknown {
    return this.#message;
  }

  #advance({ bytes }: Target): void {
    this.#filled = 0;
    this.#next++;
    if (this.#stage === 'segments' || bytes === null) return;
    if (this.#stage === 'size') {
      const size = Number(Buffer.from(bytes).readBigUInt64LE());
      if (size === 0 || size > LONGEST_HEAD) throw new Error(`the head of a message claims ${size} bytes`);
      this.#stage = 'head';
      this.#targets = [targetOf(new Uint8Array(size))];
    } else {
      this.#stage = 'segments';
      const { message, segments } = decodeHead(bytes);
      this.#message = message;
      if (segments.some((expected) => expected instanceof Landing)) this.#onHead(message);
      this.#targets = segments.flatMap(targetsOf);
    }
    this.#next = 0;
  }
}

/** Puts frames together again; one per stream and direction. */
export class FrameReader<M extends { type: string }> {
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerFilled = 0;
  /** Of the frame's payload, still to come. */
  #remaining = 0;
  #short: Buffer | null = null;
  #long: LongMessage | null = null;
  #complete: M[] = [];
  readonly #onHead: (message: M) => void;

  /** `onHead`: for messages that land; without it what is in their arrays is dropped. */
  constructor(onHead: (message: M) => void = () => {}) {
    this.#onHead = onHead;
  }

  /** The messages that these bytes complete. Throws for what is no frame of ours; then the stream is of no more use. */
  push(bytes: Uint8Array): M[] {
    this.#complete = [];
    let rest = bytes;
    while (rest.length > 0) {
      if (this.#headerFilled < HEADER_BYTES) rest = this.#takeHeader(rest);
      else {
        const taken = rest.subarray(0, this.#remaining);
        rest = rest.subarray(taken.length);
        this.#takePayload(taken);
      }
    }
    return this.#complete;
  }

  #takeHeader(bytes: Uint8Array): Uint8Array {
    const taken = bytes.subarray(0, HEADER_BYTES - this.#headerFilled);
    this.#header.set(taken, this.#headerFilled);
    this.#headerFilled += taken.length;
    if (this.#headerFilled === HEADER_BYTES) {
      const length = this.#header.readUInt32LE();
      const kind = this.#header.readUInt32LE(4);
      if ((kind !== WHOLE && kind !== PART) || length === 0 || length > LONGEST_FRAME)
        throw new Error(`a frame of kind ${kind} and length ${length}`);
      this.#remaining = length;
      if (kind === WHOLE) this.#short = Buffer.allocUnsafeSlow(length);
    }
    return bytes.subarray(taken.length);
  }

  #takePayload(bytes: Uint8Array): void {
    const short = this.#short;
    this.#remaining -= bytes.length;
    if (this.#remaining === 0) this.#headerFilled = 0;
    if (short !== null) {
      short.set(bytes, short.length - this.#remaining - bytes.length);
      if (this.#remaining > 0) return;
      this.#short = null;
      const { message, segments } = decodeHead(short);
      if (segments.length > 0) throw new Error('a short message that names segments');
      this.#deliver(message);
    } else {
      this.#long ??= new LongMessage((message) => this.#onHead(asMessage(message)));
      if (!this.#long.fill(bytes)) return;
      if (this.#remaining > 0) throw new Error(TOO_LONG);
      const { message } = this.#long;
      this.#long = null;
      this.#deliver(message);
    }
  }

  #deliver(message: unknown): void {
    this.#complete.push(asMessage(message));
  }
}

function asMessage<M extends { type: string }>(message: unknown): M {
  if (typeof message !== 'object' || message === null || !('type' in message))
    throw new Error('something that is no message');
  return message as M;
}
