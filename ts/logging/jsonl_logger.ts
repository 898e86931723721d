import { join } from 'node:path';
import { reasonOf } from '../base/text';
import { appendWhole } from './append';
import { jsonNumber } from './json_number';
import type { MetricLogger, Metrics } from './logger';

/**
 * One line {"step": n, "name": value, ...} per call, with the names that `select` accepts; no line without any. A number
 * that JSON cannot hold is written as the string "NaN", "Infinity" or "-Infinity". A line that does not fit on the disk is
 * kept, and written before the next one.
 */
export class JsonlLogger implements MetricLogger {
  readonly name: string;
  private readonly path: string;
  private readonly waiting: string[] = [];
  private last: string | null = null;

  constructor(
    directory: string,
    file: string,
    private readonly select: (name: string) => boolean = () => true,
  ) {
    this.name = file;
    this.path = join(directory, file);
  }

  /** The last line, and those before it that could not be written. */
  get tail(): readonly string[] {
    if (this.waiting.length > 0) return [...this.waiting];
    return this.last === null ? [] : [this.last];
  }

  log(metrics: Metrics, step: number): void {
    const chosen = Object.entries(metrics).filter(([name]) => this.select(name));
    if (chosen.length === 0) return;
    const values = chosen.map(([name, value]) => [name, jsonNumber(value)]);
    this.last = JSON.stringify({ step, ...Object.fromEntries(values) });
    this.waiting.push(this.last);
    this.write();
  }

  close(): void {
    try {
      this.write();
    } catch (error) {
      throw new Error(`its last ${this.waiting.length} lines are lost: ${reasonOf(error)}`);
    }
  }

  private write(): void {
    if (this.waiting.length === 0) return;
    appendWhole(this.path, this.waiting.map((line) => `${line}\n`).join(''));
    this.waiting.length = 0;
  }
}
