// Messages between a process and its threads that copy tensors.
import type { ErrorCode } from '../errors';
import type { StoredTensor } from './safetensors';
import type { FloatDtype } from './write_plan';

export interface CopyRequest {
  id: number;
  source: StoredTensor;
  /** A file that is there. */
  path: string;
  /** Where the tensor begins in it, bytes. */
  offset: number;
  dtype: FloatDtype;
}

export interface CopyReply {
  id: number;
  error?: string;
  failure?: CopyFailure;
}

/** `own`: an error that Troupe raises on purpose; else one of the file system. */
export type CopyFailure =
  | { own: true; code: ErrorCode; message: string }
  | { own: false; code: string | undefined; message: string };
