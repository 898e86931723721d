import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buf } from 'crc-32/crc32c';
import { maskedCrc32c, tfRecord } from '../../../ts/logging/event_file';
import { createLoggers } from '../../../ts/logging/loggers';
import { TensorboardLogger } from '../../../ts/logging/tensorboard_logger';
import { loggedRun, loggingConfig, temporary } from '../../helpers/logged_run';

const importable = spawnSync('python3', [
  '-c',
  'import tensorboard.backend.event_processing.event_accumulator',
]);
const withTensorboard = importable.status === 0 ? test : test.skip;
if (importable.status !== 0)
  process.stderr.write('skipped: python3 has no tensorboard to read event files back\n');

const GENERATION = { input: '1+1=', output: '# 2\n<b>', gts: '2', score: 1 };

/** Two sessions: steps 0 to 3, then from the checkpoint of step 2 on. */
async function twoSessions(directory: string): Promise<void> {
  const first = new TensorboardLogger(loggedRun({ directory }));
  first.log({ 'val-core/sums/acc/mean@1': 0.25 }, 0);
  for (const step of [1, 2, 3]) first.log({ 'actor/pg_loss': step / 10, 'actor/lr': 1e-6 }, step);
  first.log({ bad: NaN, worse: Infinity, worst: -Infinity }, 3);
  const second = new TensorboardLogger(loggedRun({ directory, firstStep: 2 }));
  for (const step of [3, 4]) second.log({ 'actor/pg_loss': step }, step);
  second.logGenerations([GENERATION, { ...GENERATION, output: 'α', gts: [2], score: 0 }], 4);
}

const eventFiles = (directory: string): string[] =>
  readdirSync(directory)
    .sort()
    .map((name) => join(directory, name));

// Below: a reader of its own for the frame and for protobuf's wire format, written from their specifications.

function records(path: string): Buffer[] {
  const bytes = readFileSync(path);
  const found: Buffer[] = [];
  let at = 0;
  while (at < bytes.length) {
    const length = Number(bytes.readBigUInt64LE(at));
    expect(bytes.readUInt32LE(at + 8)).toBe(unmaskedAndMasked(bytes.subarray(at, at + 8)));
    const data = bytes.subarray(at + 12, at + 12 + length);
    expect(data).toHaveLength(length);
    expect(bytes.readUInt32LE(at + 12 + length)).toBe(unmaskedAndMasked(data));
    found.push(data);
    at += length + 16;
  }
  return found;
}

/** CRC32C bit by bit, masked with arithmetic in 64 bits. */
function unmaskedAndMasked(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  const wide = BigInt((crc ^ 0xffffffff) >>> 0);
  return Number((((wide >> 15n) | (wide << 17n)) + 0xa282ead8n) & 0xffffffffn);
}

type Fields = { field: number; value: number | Buffer }[];

function fields(bytes: Buffer): Fields {
  let at = 0;
  const varint = (): number => {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = bytes[at++] as number;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  const found: Fields = [];
  while (at < bytes.length) {
    const key = varint();
    const field = key >>> 3;
    const type = key & 7;
    if (type === 0) found.push({ field, value: varint() });
    else {
      const length = type === 2 ? varint() : type === 1 ? 8 : 4;
      found.push({ field, value: bytes.subarray(at, at + length) });
      at += length;
    }
  }
  return found;
}

const one = (all: Fields, field: number): number | Buffer | undefined =>
  all.find((f) => f.field === field)?.value;

/** Scalars, texts and their plugins, as TensorBoard's own reader sees them. */
function readBack(directory: string) {
  const script = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
scalars = {tag: [[e.step, repr(e.value)] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
texts = {tag: [[e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
plugin = [events.SummaryMetadata(tag).plugin_data.plugin_name for tag in texts]
print(json.dumps([scalars, texts, plugin]))`;
  const python = spawnSync('python3', ['-c', script, directory], { encoding: 'utf8' });
  expect(python.status === 0 ? '' : python.stderr).toBe('');
  return JSON.parse(python.stdout);
}

test('CRC32C of known strings', () => {
  // RFC 3720, B.4
  expect(buf(Buffer.alloc(32)) >>> 0).toBe(0x8a9136aa);
  expect(buf(Buffer.alloc(32, 0xff)) >>> 0).toBe(0x62a8ab43);
  expect(buf(Buffer.from('123456789')) >>> 0).toBe(0xe3069283);
  for (const text of ['', 'a', 'brain.Event:2']) {
    const bytes = Buffer.from(text);
    expect(maskedCrc32c(bytes)).toBe(unmaskedAndMasked(bytes));
  }
  expect(tfRecord(Buffer.from('ab'))).toHaveLength(18);
});

test('records: a version, the start of the session, then one event per call with all its values', async () => {
  const directory = temporary();
  await twoSessions(directory);
  const paths = eventFiles(join(directory, 'tensorboard'));
  expect(paths).toHaveLength(2);
  const [first, second] = paths.map((path) => records(path).map(fields));
  expect(String(one(first?.[0] ?? [], 3))).toBe('brain.Event:2');
  for (const [session, start] of [
    [first, 0],
    [second, 3],
  ] as const) {
    expect(one(session?.[1] ?? [], 2)).toBe(start);
    expect(fields(one(session?.[1] ?? [], 7) as Buffer)).toEqual([{ field: 1, value: 1 }]);
  }

  const scalars = (first ?? []).slice(2).map((event) => {
    expect((one(event, 1) as Buffer).readDoubleLE()).toBeGreaterThan(1.6e9);
    const values = fields(one(event, 5) as Buffer).map(({ value }) => fields(value as Buffer));
    const step = one(event, 2);
    return [step, ...values.map((value) => [String(one(value, 1)), (one(value, 2) as Buffer).readFloatLE()])];
  });
  const lr = Math.fround(1e-6);
  expect(scalars).toEqual([
    [0, ['val-core/sums/acc/mean@1', 0.25]],
    [1, ['actor/pg_loss', Math.fround(0.1)], ['actor/lr', lr]],
    [2, ['actor/pg_loss', Math.fround(0.2)], ['actor/lr', lr]],
    [3, ['actor/pg_loss', Math.fround(0.3)], ['actor/lr', lr]],
    [3, ['bad', NaN], ['worse', Infinity], ['worst', -Infinity]],
  ]);
});

withTensorboard('TensorBoard reads it; a resumed session replaces the steps that it repeats', async () => {
  const directory = temporary();
  await twoSessions(directory);
  const [scalars, texts, plugin] = readBack(join(directory, 'tensorboard'));
  const f32 = (value: number): string => String(Math.fround(value));
  expect(scalars['val-core/sums/acc/mean@1']).toEqual([[0, '0.25']]);
  expect(scalars['actor/pg_loss']).toEqual([
    [1, f32(0.1)],
    [2, f32(0.2)],
    [3, '3.0'],
    [4, '4.0'],
  ]);
  expect(scalars['actor/lr'].map(([step]: [number]) => step)).toEqual([1, 2]);
  expect(plugin).toEqual(['text']);
  expect(texts['val/generations']).toEqual([[4, expect.stringContaining('    # 2\n    <b>')]]);
  expect(texts['val/generations'][0][1]).toContain('α');

  // A run that begins anew in the same directory replaces all.
  new TensorboardLogger(loggedRun({ directory })).log({ 'actor/pg_loss': 5 }, 1);
  const [anew] = readBack(join(directory, 'tensorboard'));
  expect(anew['actor/pg_loss']).toEqual([[1, '5.0']]);
  expect(anew['actor/lr'] ?? []).toEqual([]);
});

test('goes where it is told: the configuration, the environment, the run directory', () => {
  const [configured, variable, directory] = [temporary(), temporary(), temporary()];
  const environment = { TENSORBOARD_DIR: variable };
  const logging = { tensorboard: { dir: configured } };
  const runs = [
    loggedRun({ directory, environment, logging }),
    loggedRun({ directory, environment }),
    loggedRun({ directory }),
  ];
  for (const run of runs) new TensorboardLogger(run).log({ a: 1 }, 1);
  for (const place of [configured, variable, join(directory, 'tensorboard')])
    expect(eventFiles(place)).toHaveLength(1);
  expect(runs[0]?.said).toEqual([`tensorboard: tensorboard --logdir ${configured}`]);
});

test('a directory that cannot be made, and one that goes away: a warning, and the run goes on', async () => {
  const directory = temporary();
  writeFileSync(join(directory, 'file'), '');
  const warned: string[] = [];
  const open = (dir: string) =>
    createLoggers(loggingConfig({ logger: ['tensorboard'], logging: { tensorboard: { dir } } }), directory, {
      warn: (line) => warned.push(line),
    });
  const off = open(join(directory, 'file', 'events'));
  await off.log({ a: 1 }, 1);
  expect(warned.splice(0)).toEqual([
    expect.stringMatching(/tensorboard is off, .*logging\.tensorboard\.dir/),
  ]);

  const place = join(directory, 'events');
  const loggers = open(place);
  await loggers.log({ a: 1 }, 1);
  const [path] = eventFiles(place) as [string];
  const written = readFileSync(path);
  rmSync(path);
  mkdirSync(path);
  await loggers.log({ a: 2 }, 2);
  await loggers.log({ a: 3 }, 3);
  expect(warned).toEqual([expect.stringMatching(/tensorboard failed, the run goes on/)]);
  rmSync(path, { recursive: true });
  writeFileSync(path, written);
  await loggers.log({ a: 4 }, 4);
  await loggers.close();
  expect(records(path)).toHaveLength(4);
  expect(readFileSync(join(directory, 'metrics.jsonl'), 'utf8').trim().split('\n')).toHaveLength(5);
  expect(existsSync(path)).toBe(true);
});
