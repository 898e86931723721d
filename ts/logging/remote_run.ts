import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { TEMPORARY } from '../base/atomic_dir';
import { reasonOf } from '../base/text';
import type { LoggedRun } from './run';

/** What is known of a run on a server. */
export interface RemoteRun {
  readonly runId: string;
  /** Server and project: a run of another place is not this one. */
  readonly place: string;
  /** Last step that the server has; -1 for none. */
  lastStep: number;
}

/**
 * {run directory}/{name}.json: the run on a server that this one is, so that a resumed session goes on with it. Steps that
 * the server has are not sent again, because it would show them twice; a repeated step has the same values.
 */
export class RemoteRunFile {
  private readonly path: string;
  /** Steps up to this one were sent by earlier sessions. */
  sentBefore = -1;
  private current: RemoteRun | null = null;
  private warned = false;

  constructor(
    private readonly run: LoggedRun,
    private readonly name: string,
  ) {
    this.path = join(run.directory, `${name}.json`);
  }

  /** The run to go on with; null when this run begins anew, or has not been at `place`. */
  resumed(place: string): RemoteRun | null {
    if ((this.run.length?.firstStep ?? 0) === 0 || !existsSync(this.path)) return null;
    const { runId, place: there, lastStep } = parsed(readFileSync(this.path, 'utf8'));
    if (typeof runId !== 'string' || typeof lastStep !== 'number' || there !== place) return null;
    return { runId, place, lastStep };
  }

  /** Goes on with `remote` from here. */
  begin(remote: RemoteRun, url: string): void {
    this.current = remote;
    this.sentBefore = remote.lastStep;
    this.save(remote);
    const known = remote.lastStep < 0 ? '' : `, which has the steps up to ${remote.lastStep}`;
    this.run.say(`${this.name}: ${url}${known}`);
  }

  /** The server has `step` and all before it. */
  sent(step: number): void {
    if (this.current === null || step <= this.current.lastStep) return;
    this.current.lastStep = step;
    this.save(this.current);
  }

  /** Never throws: what was sent would be sent again. */
  private save(remote: RemoteRun): void {
    const temporary = join(this.run.directory, `${TEMPORARY}${this.name}.json`);
    try {
      writeFileSync(temporary, `${JSON.stringify(remote, null, 2)}\n`);
      renameSync(temporary, this.path);
    } catch (error) {
      if (!this.warned) this.run.warn(`${this.name}: a resumed run may repeat steps: ${reasonOf(error)}`);
      this.warned = true;
    }
  }
}

/** What a crash or a person left half-written is no run. */
function parsed(text: string): Partial<RemoteRun> {
  try {
    return (JSON.parse(text) ?? {}) as Partial<RemoteRun>;
  } catch {
    return {};
  }
}
