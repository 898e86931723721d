import { DefaultDeserializer, DefaultSerializer } from 'node:v8';

// A message as bytes: a head, serialised by V8, and beside it the long typed arrays as they lie in memory. So an array is not
// copied before it is sent, and is received into its final place.

/** Shorter arrays are copied into the head. */
const SEGMENT_BYTES = 64 * 1024;

const ARRAYS = [
  Int8Array,
  Uint8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
] as const;
const NAMES: readonly string[] = ARRAYS.map(({ name }) => name);

const INLINE = 0;
const SEGMENT = 1;

const bytesOf = (view: ArrayBufferView): Uint8Array =>
  new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

export interface EncodedMessage {
  head: Uint8Array;
  /** The memory of the long arrays itself, in the order in which the head names them. */
  segments: Uint8Array[];
}

class HeadSerializer extends DefaultSerializer {
  readonly segments: Uint8Array[] = [];

  /** Called by V8 for every typed array, once for one that is there several times. */
  _writeHostObject(view: ArrayBufferView & { length?: number }): void {
    const type = NAMES.indexOf(Object.prototype.toString.call(view).slice(8, -1));
    if (type < 0 || view.byteLength < SEGMENT_BYTES) {
      this.writeUint32(INLINE);
      writeInline.call(this, view);
      return;
    }
    this.writeUint32(SEGMENT);
    this.writeUint32(type);
    this.writeDouble(view.length as number);
    this.segments.push(bytesOf(view));
  }
}

class HeadDeserializer extends DefaultDeserializer {
  readonly segments: Uint8Array[] = [];

  _readHostObject(): ArrayBufferView {
    if (this.readUint32() === INLINE) return readInline.call(this);
    const type = ARRAYS[this.readUint32()];
    if (type === undefined) throw new Error('an array of an unknown type');
    const array = new type(this.readDouble());
    this.segments.push(bytesOf(array));
    return array;
  }
}

// Node's own way with typed arrays, which its type declarations leave out.
const writeInline = (
  DefaultSerializer.prototype as unknown as {
    _writeHostObject(this: DefaultSerializer, view: ArrayBufferView): void;
  }
)._writeHostObject;
const readInline = (
  DefaultDeserializer.prototype as unknown as {
    _readHostObject(this: DefaultDeserializer): ArrayBufferView;
  }
)._readHostObject;

/** @throws DataCloneError for what cannot be sent: functions, promises, ... */
export function encodeMessage(message: unknown): EncodedMessage {
  const serializer = new HeadSerializer();
  serializer.writeHeader();
  serializer.writeValue(message);
  return { head: serializer.releaseBuffer(), segments: serializer.segments };
}

/** The message of a head, with zeros in its long arrays, and their memory, to be filled in this order. Throws for garbage. */
export function decodeHead(head: Uint8Array): { message: unknown; segments: Uint8Array[] } {
  const deserializer = new HeadDeserializer(head);
  deserializer.readHeader();
  const message: unknown = deserializer.readValue();
  return { message, segments: deserializer.segments };
}
