// Where a run finds the server of its directory.

/** In the runs directory, for its owner alone: it has the token. */
export const NOTE_FILE = '.troupe-ui.json';

export interface ServerNote {
  pid: number;
  /** Token included. */
  address: string;
  /** Absolute: a note that was copied with its directory is of another one. */
  directory: string;
}
