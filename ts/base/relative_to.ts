import path from 'node:path';

/** The directory that a name which led nowhere was looked for in, for a message: most often it is the wrong one. Nothing of absolute names. */
export const relativeTo = (file: string): string =>
  path.isAbsolute(file) ? '' : ` (relative to ${process.cwd()})`;
