// A pipeline's schedule as text: a line per stage, a column per unit of time.
import { bubbleFraction, type PipelineShape, pipelineTimeline } from './pipeline_timeline';

/** More than these are not drawn. */
const DRAWN_COLUMNS = 150;

/** Forwards are numbers in the first chunk, `a1` for micro-batch 1 in the second; backwards are in brackets and as long as they take. */
export function renderPipeline(role: string, shape: PipelineShape): string[] {
  const { stages, microBatches, chunks, order, backwardCost } = shape;
  const timeline = pipelineTimeline(shape);
  const width = String(microBatches).length + (chunks > 1 ? 1 : 0) + 2;
  const units = Math.floor(DRAWN_COLUMNS / width);
  const name = (chunk: number, micro: number): string =>
    `${chunk === 0 ? '' : String.fromCharCode(96 + chunk)}${micro + 1}`;
  const lines = timeline.map((tasks, stage) => {
    let line = '';
    for (const { backward, chunk, micro, start } of tasks) {
      if (start + (backward ? backwardCost : 1) > units) break;
      line = line.padEnd(start * width, '·');
      const label = name(chunk, micro);
      line += backward ? `[${label.padEnd(backwardCost * width - 2, ' ')}]` : ` ${label}`.padEnd(width, ' ');
    }
    return `  stage ${String(stage).padStart(String(stages - 1).length)} ${line}`;
  });
  const end = timeline
    .flat()
    .reduce((last, { start, backward }) => Math.max(last, start + (backward ? backwardCost : 1)), 0);
  const work = microBatches * chunks * (1 + backwardCost);
  const measured = work === 0 ? 0 : end / work - 1;
  const formula = bubbleFraction(shape);
  return [
    `pipeline of the ${role}: ${stages} stages${chunks > 1 ? ` of ${chunks} ranges of layers` : ''}, ${order}, ${microBatches} micro-batches in an update`,
    `  forwards are numbers${chunks > 1 ? ' (with a letter in further ranges)' : ''}, backwards in brackets take ${backwardCost} forwards, · is idle${end > units ? `; the first ${units} of ${end} units` : ''}`,
    ...lines,
    `  idle: ${percent(measured)} of the work of a stage; (p - 1) / (v m) = ${percent(formula)}`,
  ];
}

const percent = (fraction: number): string => `${(100 * fraction).toFixed(1)} %`;
