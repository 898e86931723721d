// What no server may answer, whichever it is: nobody would learn from it, or go on from it, without an error far from its reason.
import { ServerRefused } from './server_client';
import type { ServerPart } from './server_protocol';

export class BrokenAnswer extends ServerRefused {}

/** Log-probs of a certain token may be rounded to a little above 0. */
const ROUNDED = 1e-3;

export interface PartBounds {
  url: string;
  vocabSize: number;
  /** Tokens that it sent before. */
  sent: number;
  /** Tokens that may still come. */
  room: number;
  /** Whether the likeliest tokens of each position were asked for. */
  top: boolean;
}

/** @throws BrokenAnswer */
export function checkPart(
  { tokens, logProbs, topLogProbs, versions = [], finish }: ServerPart,
  { url, vocabSize, sent, room, top }: PartBounds,
): void {
  const refuse = (what: string): never => {
    throw new BrokenAnswer(`${url} sent ${what}`);
  };
  if (tokens.length > room)
    refuse(`${tokens.length} tokens where ${room} were left of what it was asked for`);
  const outside = tokens.find((token) => !(token >= 0 && token < vocabSize));
  if (outside !== undefined)
    refuse(
      `the token ${outside}, outside the model's vocabulary (0 to ${vocabSize - 1}): does it serve another model?`,
    );
  const positive = logProbs.find((logProb) => !(logProb <= ROUNDED));
  if (positive !== undefined)
    refuse(
      `the log-prob ${positive}, which is above 0: does it send logits (vLLM: --logprobs-mode processed_logprobs)?`,
    );
  if (top && (topLogProbs?.length ?? 0) !== tokens.length)
    refuse(`${tokens.length} tokens with the likeliest ones of ${topLogProbs?.length ?? 0} positions`);
  const made = sent + tokens.length;
  if (made === 0 && finish !== undefined && finish !== 'abort')
    refuse(`the end of a response (${finish}) without a token of it`);
  let at = 0;
  for (const { version, start, end } of versions) {
    if (start !== at || end < start || end > made)
      refuse(
        `the tokens ${start} to ${end} as those of weights ${version}: expected them to go on from ${at}, among ${made} that it made`,
      );
    at = end;
  }
}
