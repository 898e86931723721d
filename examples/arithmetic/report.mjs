import { readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { trainingCurves } from './curves.mjs';
import { DATA_SOURCE } from './problems.mjs';

export const ACCURACY = `val-core/${DATA_SOURCE}/acc/mean@1`;

/** The records of a JSONL file. */
export function readJsonLines(file) {
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line));
}

const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** Accuracy on the held-out problems before the first and after the last step of a metrics.jsonl. */
export function accuracies(records) {
  const values = records.filter((record) => record[ACCURACY] !== undefined);
  if (values.length === 0) throw new Error(`no record has the metric ${ACCURACY}`);
  const [first, last] = [values[0], values.at(-1)];
  return { before: first[ACCURACY], after: last[ACCURACY], steps: last.step };
}

/**
 * Writes curves.svg and summary.json of a finished run and prints what came out of it.
 * @param {{ directory: string, algorithm: string, parameters: number, seconds: Record<string, number> }} run
 */
export function report({ directory, algorithm, parameters, seconds }) {
  const rl = join(directory, 'rl');
  const records = readJsonLines(join(rl, 'metrics.jsonl'));
  const { before, after, steps } = accuracies(records);
  writeFileSync(
    join(directory, 'curves.svg'),
    trainingCurves(`${algorithm} on arithmetic`, records, ACCURACY),
  );
  const summary = { algorithm, parameters, steps, accuracy: { before, after }, seconds };
  writeFileSync(join(directory, 'summary.json'), `${JSON.stringify(summary, null, 2)}\n`);
  const here = (...parts) => relative(process.cwd(), join(directory, ...parts)) || '.';
  const time = Object.entries(seconds).map(([phase, value]) => `${phase} ${value.toFixed(0)} s`);
  const gain = 100 * (after - before);
  console.log(`
Accuracy on held-out problems (greedy)
  after the SFT warm start     ${percent(before).padStart(7)}
  after ${`${steps} steps of ${algorithm}`.padEnd(22)} ${percent(after).padStart(7)}   (${gain >= 0 ? '+' : ''}${gain.toFixed(1)} points)

Time: ${time.join(', ')}
Curves             ${here('curves.svg')}
Metrics            ${here('rl', 'metrics.jsonl')}
Sample answers     ${here('rl', 'samples')}
Resolved config    ${here('rl', 'config.json')}
Trained model      ${here('rl', 'final_model')}`);
}
