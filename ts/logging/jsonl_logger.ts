import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import type { MetricLogger, Metrics } from './logger';

/**
 * One line {"step": n, "name": value, ...} per call, with the names that `select` accepts; no line without any. A number
 * that JSON cannot hold is written as the string "NaN", "Infinity" or "-Infinity". A line that does not fit on the disk is
 * left out whole.
 */
export class JsonlLogger implements MetricLogger {
  readonly name: string;
  private readonly path: string;

  constructor(
    directory: string,
    file: string,
    private readonly select: (name: string) => boolean = () => true,
  ) {
    this.name = file;
    this.path = join(directory, file);
  }

  log(metrics: Metrics, step: number): void {
    const chosen = Object.entries(metrics).filter(([name]) => this.select(name));
    if (chosen.length === 0) return;
    const values = chosen.map(([name, value]) => [name, Number.isFinite(value) ? value : String(value)]);
    const before = existsSync(this.path) ? statSync(this.path).size : 0;
    try {
      appendFileSync(this.path, `${JSON.stringify({ step, ...Object.fromEntries(values) })}\n`);
    } catch (error) {
      if (existsSync(this.path)) truncateSync(this.path, before);
      throw error;
    }
  }

  close(): void {}
}
