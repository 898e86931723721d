import { TroupeError } from '../errors';

/** @throws TroupeError INVALID_ARGUMENT */
export function fail(message: string): never {
  throw new TroupeError('INVALID_ARGUMENT', `[batch] ${message}`);
}
