// A pipe with a name, which a reader would wait at.
import { execFileSync } from 'node:child_process';

export const makeFifo = (path: string): void => {
  execFileSync('mkfifo', [path]);
};
