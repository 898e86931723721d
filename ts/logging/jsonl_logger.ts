import { join } from 'node:path';
import { appendWhole } from './append';
import { jsonNumber } from './json_number';
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
    const values = chosen.map(([name, value]) => [name, jsonNumber(value)]);
    appendWhole(this.path, `${JSON.stringify({ step, ...Object.fromEntries(values) })}\n`);
  }

  close(): void {}
}
