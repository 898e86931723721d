import Table from 'cli-table3';
import { toJson } from '../base/text';
import type { Generation } from './logger';

const NARROWEST = 60;
/** Characters of a prompt or an answer: a table is to be looked through, not read. */
const LONGEST = 600;
const SCORE = 9;

/** Answers of a validation as a table of `width` characters: score, prompt, answer, ground truth. */
export function generationsTable(generations: readonly Generation[], step: number, width: number): string {
  // Four cells have five borders; a cell has a space on either side, which its width includes.
  const room = Math.max(NARROWEST, width) - 5 - SCORE;
  const truth = Math.floor(room / 5);
  const text = Math.floor((room - truth) / 2);
  const table = new Table({
    head: ['score', 'prompt', 'answer', 'truth'],
    colWidths: [SCORE, text, text, truth],
    wordWrap: true,
    wrapOnWordBoundary: false,
    style: { head: [], border: [] },
  });
  for (const { input, output, gts, score } of generations) {
    const shown = typeof gts === 'string' ? gts : (toJson(gts) ?? '');
    table.push([String(Number(score.toPrecision(4))), printable(input), printable(output), printable(shown)]);
  }
  return `validation at step ${step}, ${generations.length} of its answers\n${table.toString()}`;
}

/** What a model writes must not move the cursor or ring the bell. */
function printable(text: string): string {
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}...` : text;
  return cut
    .replaceAll('\t', '    ')
    .replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, (character) =>
      character === '\n' ? '\n' : `\\u{${(character.codePointAt(0) as number).toString(16)}}`,
    );
}
