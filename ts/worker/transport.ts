import { deserialize, serialize } from 'node:v8';
import type { ChannelOptions, MethodDefinition } from '@grpc/grpc-js';
import type { Chunk, ControllerMessage, WorkerMessage } from './protocol';

// One gRPC bidirectional stream per worker, dialled by the worker. gRPC moves opaque byte frames; a
// frame is a v8-serialised message, so that TypedArrays keep their type and are copied once.

/**
 * Longer messages are cut up: gRPC and Node's buffers have limits, and every frame that arrives is a sign of life while
 * a long message is on its way.
 */
const longestFrame = 16 * 2 ** 20;

const asIs = (frame: Buffer): Buffer => frame;

/** The only method of the service; its path names both ends' version of this file. */
export const attachMethod: MethodDefinition<Buffer, Buffer> = {
  path: '/troupe.Controller/Attach',
  requestStream: true,
  responseStream: true,
  requestSerialize: asIs,
  requestDeserialize: asIs,
  responseSerialize: asIs,
  responseDeserialize: asIs,
};

export const channelOptions: ChannelOptions = {
  'grpc.max_send_message_length': -1,
  'grpc.max_receive_message_length': -1,
  // Twice as fast on batches of tens of megabytes as the default of 64 KiB; more gains nothing.
  'grpc-node.flow_control_window': 2 ** 20,
  // A proxy from the environment must not see loopback traffic, and a lost stream is never resumed.
  'grpc.enable_http_proxy': 0,
  'grpc.enable_retries': 0,
};

/** The frames of one message: one, unless it is longer than `longest` bytes. */
export function* encodeMessage(
  message: ControllerMessage | WorkerMessage,
  longest: number = longestFrame,
): Generator<Buffer> {
  const bytes = serialize(message);
  if (bytes.length <= longest) {
    yield bytes;
    return;
  }
  for (let start = 0; start < bytes.length; start += longest) {
    const end = Math.min(start + longest, bytes.length);
    const chunk: Chunk = { type: 'chunk', bytes: bytes.subarray(start, end), last: end === bytes.length };
    yield serialize(chunk);
  }
}

/** Puts frames together again; one per stream and direction. */
export class MessageDecoder<M extends ControllerMessage | WorkerMessage> {
  #chunks: Uint8Array[] = [];

  /** The message that this frame completes, or null when more frames are to come. */
  push(frame: Buffer): M | null {
    const message = deserialize(frame) as M | Chunk;
    if (message.type !== 'chunk') return message as M;
    this.#chunks.push(message.bytes);
    if (!message.last) return null;
    const bytes = Buffer.concat(this.#chunks);
    this.#chunks = [];
    return deserialize(bytes) as M;
  }
}
