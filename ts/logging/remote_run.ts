import { createHash } from 'node:crypto';
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { TEMPORARY } from '../base/atomic_dir';
import { reasonOf, toJson } from '../base/text';
import type { LoggedRun } from './run';

/** What is known of a run on a server. */
export interface RemoteRun {
  readonly runId: string;
  /** Server and project: a run of another place is not this one. */
  readonly place: string;
  /** Last step that the server has; -1 for none. */
  lastStep: number;
}

/** Keys of the trainer that say how to go on, or where, not with what. */
const HOW_TO_RESUME = ['resume_mode', 'resume_from_path', 'resume_with_changes', 'default_local_dir'];

/**
 * {run directory}/{name}.json: the run on a server that this one is, so that a resumed session goes on with it. Steps that
 * the server has are not sent again, because it would show them twice; a repeated step has the same values, unless the configuration is another
 * one: such a session is another run.
 */
export class RemoteRunFile {
  private readonly path: string;
  /** Steps up to this one were sent by earlier sessions. */
  sentBefore = -1;
  private current: RemoteRun | null = null;
  private warned = false;
  private readonly digest: string;
  /** Why the run on the server is not gone on with. */
  private parted: string | null = null;

  constructor(
    private readonly run: LoggedRun,
    private readonly name: string,
  ) {
    this.path = join(run.directory, `${name}.json`);
    this.digest = digestOf(run.record);
  }

  /** The run to go on with; null when this run begins anew, or has not been at `place`. */
  resumed(place: string): RemoteRun | null {
    const done = this.run.length?.firstStep ?? 0;
    if (done === 0 || !existsSync(this.path)) return null;
    const { runId, place: there, lastStep, config } = parsed(readFileSync(this.path, 'utf8'));
    if (typeof runId !== 'string' || typeof lastStep !== 'number' || there !== place) return null;
    if (done < lastStep && config !== undefined && config !== this.digest) {
      this.parted =
        `the configuration is another one than that of run ${runId}, which has steps up to ${lastStep} of which those after ${done} come ` +
        'again: they go to a new run';
      return null;
    }
    return { runId, place, lastStep };
  }

  /** Goes on with `remote` from here. */
  begin(remote: RemoteRun, url: string): void {
    this.current = remote;
    this.sentBefore = remote.lastStep;
    this.save(remote);
    if (this.parted !== null) this.run.say(`${this.name}: ${this.parted}`);
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
      writeFileSync(temporary, `${JSON.stringify({ ...remote, config: this.digest }, null, 2)}\n`);
      renameSync(temporary, this.path);
    } catch (error) {
      if (!this.warned) this.run.warn(`${this.name}: a resumed run may repeat steps: ${reasonOf(error)}`);
      this.warned = true;
    }
  }
}

function digestOf(record: object): string {
  const { trainer } = record as { trainer?: object };
  const kept = Object.entries(trainer ?? {}).filter(([key]) => !HOW_TO_RESUME.includes(key));
  const config = toJson({ ...record, trainer: Object.fromEntries(kept) });
  return createHash('sha256').update(config).digest('base64url');
}

/** `config`: digest of the configuration that the steps are of; earlier versions have none. */
type Remembered = RemoteRun & { readonly config: string };

/** What a crash or a person left half-written is no run. */
function parsed(text: string): Partial<Remembered> {
  try {
    return (JSON.parse(text) ?? {}) as Partial<Remembered>;
  } catch {
    return {};
  }
}
