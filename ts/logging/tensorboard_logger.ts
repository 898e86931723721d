import { readdirSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { toJson } from '../base/text';
import { writableDirectory } from '../run/run_directory';
import { EventFile } from './event_file';
import type { Generation, MetricLogger, Metrics } from './logger';
import { type LoggedRun, variable } from './run';

/**
 * Event files that TensorBoard reads, in `logging.tensorboard.dir`. Every session of a run writes a file of its own; it
 * begins with a session start, at which TensorBoard drops the steps that the session repeats.
 */
export class TensorboardLogger implements MetricLogger {
  readonly name = 'tensorboard';
  private readonly file: EventFile;

  /** Throws when the directory cannot be made. */
  constructor(run: LoggedRun) {
    const directory = writableDirectory(
      'logging.tensorboard.dir',
      run.config.logging.tensorboard.dir ??
        variable(run, 'TENSORBOARD_DIR') ??
        join(run.directory, 'tensorboard'),
    );
    const firstStep = run.length?.firstStep ?? 0;
    this.file = new EventFile(join(directory, fileName(directory)), firstStep === 0 ? 0 : firstStep + 1);
    run.say(`tensorboard: tensorboard --logdir ${directory}`);
  }

  log(metrics: Metrics, step: number): void {
    const values = Object.entries(metrics).map(([tag, number]) => ({ tag, number }));
    if (values.length > 0) this.file.write(step, values);
  }

  logGenerations(generations: readonly Generation[], step: number): void {
    const text = generations.map(markdown).join('\n\n---\n\n');
    this.file.write(step, [{ tag: 'val/generations', text }]);
  }

  close(): void {}
}

/** TensorBoard reads the files of a directory in the order of their names: the time first, then a running number. */
function fileName(directory: string): string {
  const earlier = readdirSync(directory).filter((name) => name.startsWith('events.out.tfevents.')).length;
  const seconds = String(Math.floor(Date.now() / 1000)).padStart(10, '0');
  return `events.out.tfevents.${seconds}.${String(earlier).padStart(6, '0')}.${hostname()}.${process.pid}`;
}

function markdown({ input, output, gts, score }: Generation): string {
  // Indented: text of a model must not be taken for Markdown.
  const code = (text: string): string => text.replace(/^/gm, '    ');
  return [
    `**score ${score}, ground truth:**\n\n${code(toJson(gts) ?? '')}`,
    `**input**\n\n${code(input)}`,
    `**output**\n\n${code(output)}`,
  ].join('\n\n');
}
