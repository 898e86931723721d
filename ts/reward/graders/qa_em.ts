// Search-R1's rewards as its trainer gives them: on the whole sequence, prompt included.
import { checkOptionNames, numberOption, requireText, requireTexts } from '../../base/check_options';
import type { RewardKwargs, RewardOutcome, RewardSample } from '../contract/types';
import { strip, WHITE_SPACE } from './python_text';
import { normalizeAnswer } from './search_r1';

export interface QaEmScores {
  /** Of a valid form without the right answer, and what an invalid form takes off the right one. 0 */
  structureFormatScore?: number;
  /** Of a wrong answer in an invalid form. 0 */
  finalFormatScore?: number;
  /** On top, where the right answer is among what was found. 0 */
  retrievalScore?: number;
}

const TAG = /(<\/?(?:think|search|information|answer)>)/;
const ASSISTANT = new RegExp(`<\\|im_start\\|>assistant[${WHITE_SPACE}]*`);

/** Which tag leads from which states to which. */
const STEPS: Readonly<Record<string, { from: readonly string[]; to: string }>> = {
  '<think>': { from: ['start', 'information'], to: 'in think' },
  '</think>': { from: ['in think'], to: 'thought' },
  '<search>': { from: ['thought'], to: 'in search' },
  '</search>': { from: ['in search'], to: 'searched' },
  '<information>': { from: ['searched'], to: 'in information' },
  '</information>': { from: ['in information'], to: 'information' },
  '<answer>': { from: ['thought'], to: 'in answer' },
  '</answer>': { from: ['in answer'], to: 'end' },
};

/**
 * Whether what follows the first ChatML mark of the assistant is think, then (search, information, think) any number of times, then
 * answer, with nothing but white space between them.
 */
function hasValidForm(text: string): boolean {
  const start = ASSISTANT.exec(text);
  if (start === null) return false;
  let state = 'start';
  for (const part of text.slice(start.index + start[0].length).split(TAG)) {
    if (strip(part) === '') continue;
    const step = Object.hasOwn(STEPS, part) ? STEPS[part] : undefined;
    if (step !== undefined) {
      if (!step.from.includes(state)) return false;
      state = step.to;
    } else if (!state.startsWith('in ')) {
      return false;
    }
  }
  return state === 'end';
}

function blocks(text: string, tag: string): string[] {
  const found: string[] = [];
  const [open, close] = [`<${tag}>`, `</${tag}>`];
  for (let from = 0; ; ) {
    const start = text.indexOf(open, from);
    const end = start < 0 ? -1 : text.indexOf(close, start + open.length);
    if (end < 0) return found;
    found.push(strip(text.slice(start + open.length, end)));
    from = end + close.length;
  }
}

/**
 * The reward of a sequence. The last `<answer>...</answer>` counts, and only where there are two: the prompt of Search-R1 has one as its
 * example. 1 for an answer that equals a target in SQuAD's normal form; see {@link QaEmScores} for the rest.
 */
export function scoreQaEm(text: string, targets: readonly string[], scores: QaEmScores = {}): number {
  const where = 'scoreQaEm';
  requireText(where, 'text', text);
  requireTexts(where, 'targets', targets);
  checkOptionNames(where, scores, ['structureFormatScore', 'finalFormatScore', 'retrievalScore']);
  for (const [name, value] of Object.entries(scores)) numberOption(where, name, value, 0);
  const { structureFormatScore: structure = 0, finalFormatScore: final = 0, retrievalScore = 0 } = scores;
  const valid = hasValidForm(text);
  const retrieved = (): boolean =>
    blocks(text, 'information').some((block) =>
      targets.some((target) => normalizeAnswer(block).includes(normalizeAnswer(target))),
    );
  const formed = (): number => structure + (retrieved() ? retrievalScore : 0);
  const answers = blocks(text, 'answer');
  if (answers.length < 2) return valid ? formed() : 0;
  const given = normalizeAnswer(answers.at(-1) as string);
  if (targets.some((target) => normalizeAnswer(target) === given)) return valid ? 1 : 1 - structure;
  return valid ? formed() : final;
}

const score = (kwargs: RewardKwargs | undefined, key: string): number => {
  const given = kwargs?.[key];
  return typeof given === 'number' ? given : 0;
};

/** {@link scoreQaEm} of prompt and response, with the scores of the reward's keyword arguments; `em`: without them. */
export function qaEm({ prompt, response, groundTruth }: RewardSample, kwargs?: RewardKwargs): RewardOutcome {
  const { target } = (groundTruth ?? {}) as { target?: unknown };
  const targets = (Array.isArray(target) ? target : [target ?? groundTruth]).map(String);
  const text = prompt + response;
  const reward = scoreQaEm(text, targets, {
    structureFormatScore: score(kwargs, 'structure_format_score'),
    finalFormatScore: score(kwargs, 'final_format_score'),
    retrievalScore: score(kwargs, 'retrieval_score'),
  });
  return { score: reward, em: scoreQaEm(text, targets) };
}

/** Data sources of Search-R1's own data sets. */
export const QA_SOURCES = [
  'nq',
  'triviaqa',
  'popqa',
  'web_questions',
  'hotpotqa',
  '2wikimultihopqa',
  'musique',
  'bamboogle',
  'strategyqa',
] as const;
