// What a server answers when it does not do what it was asked.
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** The field of the body that is wrong. */
    readonly param: string | null = null,
    readonly code: string | null = null,
  ) {
    super(message);
    this.name = 'ApiError';
  }

  /** By the names of the OpenAI API. */
  get type(): string {
    if (this.status === 401) return 'authentication_error';
    if (this.status === 404) return 'not_found_error';
    if (this.status === 429) return 'rate_limit_error';
    return this.status < 500 ? 'invalid_request_error' : 'server_error';
  }
}

export const badField = (param: string, message: string): ApiError =>
  new ApiError(400, `${param}: ${message}`, param, 'invalid_value');

/** A refusal that names no field yet, of this one. */
export const inField = (field: string, error: ApiError): ApiError =>
  error.status === 400 && error.param === null
    ? new ApiError(400, `${field}: ${error.message}`, field, error.code)
    : error;

/** What the engine or a template refuses is the caller's doing; everything else is ours. */
export function apiErrorOf(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  const message = printable(reasonOf(error), { max: 4000 });
  if (!(error instanceof TroupeError)) return new ApiError(500, message);
  if (error.code === 'INVALID_ARGUMENT' || error.code === 'INVALID_DATA') return new ApiError(400, message);
  return new ApiError(error.code === 'CLOSED' || error.code === 'ABORTED' ? 503 : 500, message);
}
