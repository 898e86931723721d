// Curves as a file for spreadsheets and data frames: CSV (RFC 4180) of every value, none thinned out.
import type { SeriesRequest } from './series_store';

/** Characters that are sent at once. */
const PIECE = 64 << 10;

/** A field; one that a spreadsheet would take for a formula begins with an apostrophe. */
function field(text: string): string {
  const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export interface CsvRows {
  run: string;
  /** x, the value, the smoothed value (null: none). */
  rows: Iterable<readonly [number, number, number | null]>;
}

/** Lines of `run, x, value, smoothed`; numbers as JavaScript writes them, so that they read back as they were. */
export function* csvPieces(axis: SeriesRequest['x'], curves: Iterable<CsvRows>): Generator<string> {
  let text = `run,${axis},value,smoothed\r\n`;
  for (const { run, rows } of curves) {
    const name = field(run);
    for (const [x, value, smooth] of rows) {
      text += `${name},${x},${value},${smooth ?? ''}\r\n`;
      if (text.length < PIECE) continue;
      yield text;
      text = '';
    }
  }
  yield text;
}

/** Of a metric: what any file system takes. */
export const csvName = (metric: string): string => `${metric.replace(/[^\w.@-]+/g, '_').slice(0, 100)}.csv`;
