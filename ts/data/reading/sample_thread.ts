// A thread that reads and tokenizes samples of a data set.
import { serialize } from 'node:v8';
import { parentPort, workerData } from 'node:worker_threads';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import type { Dataset } from '../dataset';
import { RlDataset } from '../rl_dataset';
import { SftDataset } from '../sft_dataset';
import { Tokenizer } from '../tokenizer';
import type { Outcome, PackedSamples, SampleReply, SampleRequest, ThreadSpec } from './protocol';

function open(spec: ThreadSpec): Promise<RlDataset | SftDataset> {
  const { directory, chatTemplate } = spec.tokenizer;
  const tokenizer = Tokenizer.load(directory, { chatTemplate });
  const { keptBytes } = spec;
  if (spec.kind === 'rl') return RlDataset.unchecked(spec.paths, tokenizer, spec.options, keptBytes);
  return SftDataset.unchecked(spec.paths, tokenizer, spec.options, keptBytes);
}

async function outcome(dataset: Dataset<unknown>, i: number): Promise<Outcome> {
  try {
    return { sample: await dataset.sample(i) };
  } catch (error) {
    const code = error instanceof TroupeError ? error.code : 'INTERNAL';
    return { code, message: reasonOf(error) };
  }
}

async function read(dataset: Dataset<unknown>, indices: Int32Array): Promise<PackedSamples> {
  const parts: Buffer[] = [];
  const ends = new Uint32Array(indices.length);
  let end = 0;
  for (const [n, i] of indices.entries()) {
    const part = serialize(await outcome(dataset, i));
    parts.push(part);
    end += part.length;
    ends[n] = end;
  }
  const bytes = new Uint8Array(end);
  parts.forEach((part, n) => {
    bytes.set(part, (ends[n] as number) - part.length);
  });
  return { bytes, ends };
}

const port = parentPort as NonNullable<typeof parentPort>;
const opened = open(workerData as ThreadSpec);
// Whoever asks is told.
opened.catch(() => undefined);

async function answer(request: SampleRequest): Promise<void> {
  const { id } = request;
  const reply = (message: SampleReply, transfer: ArrayBuffer[] = []): void =>
    port.postMessage(message, transfer);
  try {
    const dataset = await opened;
    if (request.kind === 'read') {
      const samples = await read(dataset, request.indices);
      return reply({ id, samples }, [samples.bytes.buffer, samples.ends.buffer]);
    }
    if (!(dataset instanceof RlDataset)) throw new Error('expected a data set of prompts to count');
    reply({ id, usable: await dataset.usableOf(request.from, request.to) });
  } catch (error) {
    reply({ id, error: reasonOf(error) });
  }
}

let before: Promise<void> = Promise.resolve();
port.on('message', (request: SampleRequest) => {
  before = before.then(() => answer(request));
});
