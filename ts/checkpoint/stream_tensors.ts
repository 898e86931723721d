import { closeSync, openSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import pLimit from 'p-limit';
import { ThreadCalls } from '../base/thread_calls';
import { TroupeError } from '../errors';
import { packageRoot } from '../install/package_root';
import type { NativeTensorFile } from '../native/bridge';
import { writeAll } from './copy_tensor';
import type { CopyFailure, CopyReply, CopyRequest } from './copy_thread_protocol';
import type { StoredTensor } from './safetensors';
import type { FloatDtype } from './write_plan';

/** Each holds some tens of megabytes, and a disk takes no more than a few of them write. */
const MOST_THREADS = 8;

type Job = Omit<CopyRequest, 'id'>;
type Thread = ThreadCalls<CopyRequest, CopyReply>;

/**
 * Writes planned safetensors files from stored tensors of the same names, in the planned dtypes: several tensors at a time, in threads, beside
 * other work of the process.
 *
 * @throws TroupeError NON_FINITE naming a tensor that holds NaN or infinity, or a value that the dtype cannot hold; IO for a file that ends
 *   early. Errors of the file system come as they are.
 */
export async function streamTensors(
  files: readonly NativeTensorFile[],
  stored: ReadonlyMap<string, StoredTensor>,
): Promise<void> {
  for (const { path, header } of files) writeHeader(path, header);
  const jobs = files.flatMap((file) => jobsOf(file, stored));
  const threads = Array.from({ length: Math.min(MOST_THREADS, availableParallelism(), jobs.length) }, start);
  try {
    await copyAll(jobs, threads);
  } finally {
    await Promise.all(threads.map((thread) => thread.end()));
  }
}

function writeHeader(file: string, header: Uint8Array): void {
  const out = openSync(file, 'wx');
  try {
    writeAll(out, header, 0);
  } finally {
    closeSync(out);
  }
}

/** Parts of a tensor follow each other, and are copied with the first. */
const jobsOf = ({ path, tensors }: NativeTensorFile, stored: ReadonlyMap<string, StoredTensor>): Job[] =>
  tensors
    .filter(({ label }, i) => label !== tensors[i - 1]?.label)
    .map(({ label, offset, dtype }) => ({
      source: stored.get(label) as StoredTensor,
      path,
      offset,
      dtype: dtype as FloatDtype,
    }));

const start = (): Thread =>
  new ThreadCalls(path.join(packageRoot, 'dist', 'checkpoint', 'copy_thread.js'), null, 'tensors');

/** After a failure nothing more is begun. Of several failures that of the first tensor is told. */
async function copyAll(jobs: readonly Job[], threads: readonly Thread[]): Promise<void> {
  const idle = [...threads];
  const limit = pLimit(Math.max(threads.length, 1));
  let failed = false;
  const copy = async (job: Job): Promise<void> => {
    if (failed) return;
    const thread = idle.pop() as Thread;
    try {
      const { failure } = await thread.ask(job);
      if (failure !== undefined) throw errorOf(failure);
    } catch (error) {
      failed = true;
      throw error;
    } finally {
      idle.push(thread);
    }
  };
  const results = await Promise.allSettled(jobs.map((job) => limit(copy, job)));
  for (const result of results) if (result.status === 'rejected') throw result.reason;
}

const errorOf = (failure: CopyFailure): Error =>
  failure.own
    ? new TroupeError(failure.code, failure.message)
    : Object.assign(new Error(failure.message), { code: failure.code });
