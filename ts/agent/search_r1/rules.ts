// The texts of Search-R1 (Jin et al. 2025, arXiv 2503.09516): which action a response is, and what the model is told of it.
import { strip } from '../../reward/graders/python_text';

export type Action =
  | { kind: 'search'; query: string }
  | { kind: 'answer'; answer: string }
  /** Neither of the two tags is opened and closed. */
  | { kind: 'invalid' };

const SEARCH_END = '</search>';
const ANSWER_END = '</answer>';

/** Where a response that is still being made can end. */
export const STOP = [SEARCH_END, ANSWER_END] as const;

/** What follows an invalid action. */
export const INVALID_ACTION =
  '\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. ' +
  'If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n';

/** A response up to its first `</search>`, else to its first `</answer>`, else all of it. */
export function cutResponse(text: string): string {
  for (const end of STOP) {
    const at = text.indexOf(end);
    if (at >= 0) return text.slice(0, at + end.length);
  }
  return text;
}

/** The first `<search>...</search>` or `<answer>...</answer>`, without white space around what is in it. */
export function actionOf(response: string): Action {
  const found = /<(search|answer)>([\s\S]*?)<\/\1>/.exec(response);
  if (found === null) return { kind: 'invalid' };
  const content = strip(found[2] as string);
  return found[1] === 'search' ? { kind: 'search', query: content } : { kind: 'answer', answer: content };
}

/** A passage as retrievers keep it: its title on the first line (in quotes, mostly), then its text. */
export interface Passage {
  contents: string;
}

/** What the model reads of the passages found. */
export function passagesText(passages: readonly Passage[]): string {
  return passages
    .map(({ contents }, i) => {
      const [title, ...text] = contents.split('\n');
      return `Doc ${i + 1}(Title: ${title}) ${text.join('\n')}\n`;
    })
    .join('');
}

/** What follows a search. */
export const informationBlock = (passages: readonly Passage[]): string =>
  `\n\n<information>${strip(passagesText(passages))}</information>\n\n`;
