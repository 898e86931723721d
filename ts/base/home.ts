import { homedir } from 'node:os';

/** The name of a file with its leading ~ written out, as verl reads such names; any other as it is. */
export const expandHome = (path: string): string => path.replace(/^~(?=\/|$)/, homedir());
