import { buf } from 'crc-32/crc32c';
import { Root } from 'protobufjs/light';
import { appendWhole } from './append';

// The fields that are written of tensorboard/compat/proto/{event,summary,tensor,tensor_shape}.proto, with their numbers.
const root = Root.fromJSON({
  nested: {
    Event: {
      fields: {
        wallTime: { type: 'double', id: 1 },
        step: { type: 'int64', id: 2 },
        fileVersion: { type: 'string', id: 3 },
        summary: { type: 'Summary', id: 5 },
        sessionLog: { type: 'SessionLog', id: 7 },
      },
    },
    SessionLog: { fields: { status: { type: 'int32', id: 1 } } },
    Summary: { fields: { value: { rule: 'repeated', type: 'Value', id: 1 } } },
    Value: {
      fields: {
        tag: { type: 'string', id: 1 },
        simpleValue: { type: 'float', id: 2 },
        tensor: { type: 'Tensor', id: 8 },
        metadata: { type: 'Metadata', id: 9 },
      },
    },
    Metadata: { fields: { pluginData: { type: 'PluginData', id: 1 } } },
    PluginData: { fields: { pluginName: { type: 'string', id: 1 } } },
    Tensor: {
      fields: {
        dtype: { type: 'int32', id: 1 },
        tensorShape: { type: 'Shape', id: 2 },
        stringVal: { rule: 'repeated', type: 'bytes', id: 8 },
      },
    },
    Shape: { fields: { dim: { rule: 'repeated', type: 'Dim', id: 2 } } },
    Dim: { fields: { size: { type: 'int64', id: 1 } } },
  },
});
const Event = root.lookupType('Event');

const SESSION_START = 1;
const DT_STRING = 7;

/** A summary value: one number (held as float32) or one text under a tag. */
export type SummaryValue = { tag: string; number: number } | { tag: string; text: string };

/**
 * CRC32C masked as TFRecord has it: rotated right by 15 bits, plus a constant, so that the checksum of data that holds
 * checksums stays a good one.
 */
export function maskedCrc32c(bytes: Uint8Array): number {
  const crc = buf(bytes) >>> 0;
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

/** TFRecord: length (uint64), its masked CRC, the bytes, their masked CRC; all little-endian. */
export function tfRecord(data: Uint8Array): Buffer {
  const record = Buffer.alloc(data.length + 16);
  record.writeBigUInt64LE(BigInt(data.length), 0);
  record.writeUInt32LE(maskedCrc32c(record.subarray(0, 8)), 8);
  record.set(data, 12);
  record.writeUInt32LE(maskedCrc32c(data), data.length + 12);
  return record;
}

/** A TensorBoard event file: TFRecords of Event messages. Each record is written whole, or not at all. */
export class EventFile {
  private begun = false;

  /** Nothing is written before the first event. `firstStep`: TensorBoard drops what earlier files say of this step and later ones. */
  constructor(
    private readonly path: string,
    private readonly firstStep: number,
    private readonly seconds: () => number = () => Date.now() / 1000,
  ) {}

  write(step: number, values: readonly SummaryValue[]): void {
    const event = { step, summary: { value: values.map(summaryValue) } };
    const head = [
      { fileVersion: 'brain.Event:2' },
      { step: this.firstStep, sessionLog: { status: SESSION_START } },
    ];
    const events = this.begun ? [event] : [...head, event];
    const wallTime = this.seconds();
    appendWhole(
      this.path,
      Buffer.concat(events.map((fields) => tfRecord(Event.encode({ wallTime, ...fields }).finish()))),
    );
    this.begun = true;
  }
}

function summaryValue(value: SummaryValue): object {
  if ('number' in value) return { tag: value.tag, simpleValue: value.number };
  return {
    tag: value.tag,
    metadata: { pluginData: { pluginName: 'text' } },
    tensor: {
      dtype: DT_STRING,
      tensorShape: { dim: [{ size: 1 }] },
      stringVal: [Buffer.from(value.text, 'utf8')],
    },
  };
}
