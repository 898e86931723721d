import { MultiBar, Presets, type SingleBar } from 'cli-progress';
import { formatDuration } from './remaining_time';
import type { RunLength } from './run_length';

/**
 * The last line of a terminal: how much of the run is done and how long the rest will take. It counts on while a step
 * runs. `remaining`: seconds, null when unknown.
 */
export class ProgressBar {
  private readonly started = performance.now();
  // Its lone bar: only a MultiBar finds its line again after others were printed above it.
  private readonly bars: MultiBar;
  private readonly bar: SingleBar;

  constructor(length: RunLength, out: NodeJS.WritableStream, remaining: () => number | null) {
    const options = {
      format: '{bar} {value}/{total} steps | {elapsed} elapsed | {left} left',
      stream: out,
      clearOnComplete: true,
      fps: 2,
      barsize: 30,
      // The bar is cut to the width; lines above it may wrap, and there is nothing to restore when the process is killed.
      linewrap: true,
    };
    this.bars = new MultiBar(options, Presets.shades_classic);
    this.bar = this.bars.create(length.totalSteps, length.firstStep, { elapsed: '0:00', left: '?' });
    this.bars.on('update-pre', () => {
      const seconds = remaining();
      this.bar.update({
        elapsed: formatDuration((performance.now() - this.started) / 1000),
        left: seconds === null ? '?' : formatDuration(seconds),
      });
    });
  }

  /** A line above the bar, which moves to `step`. */
  print(line: string, step: number): void {
    this.bar.update(step);
    this.bars.log(`${line}\n`);
    this.bars.update();
  }

  close(): void {
    this.bars.stop();
  }
}
