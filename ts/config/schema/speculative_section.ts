// Drafts of our own engine, under the names that vLLM's speculative_config has.
import { choice, count, field, orNull } from './field';

export const speculativeSection = {
  method: field(
    orNull(choice('ngram', 'mtp')),
    null,
    "Our own engine guesses tokens and checks several in one step; no token changes. ngram: from the prompt, the response so far and other responses to the prompt; mtp: by the model's own layer for further tokens. null: mtp where model.mtp.enable_rollout says so, otherwise one token per step.",
  ),
  num_speculative_tokens: field(count('tokens'), 4, 'Guesses per response and step at most.'),
  prompt_lookup_min: field(count('match'), 2, 'Of ngram: last tokens that a place must match to be a guess.'),
  prompt_lookup_max: field(
    count('match'),
    8,
    'Of ngram: last tokens that are compared; the longest match counts.',
  ),
  disable_by_batch_size: field(
    count('sequences'),
    16,
    'With more responses than these at the same time on a rank nothing is guessed: their steps have enough to compute. With n of them a token is computed as a draft where it is right with a probability of n / this, as far as earlier ones tell.',
  ),
  history_tokens: field(
    count('history', 0),
    4_194_304,
    'Of ngram: tokens of responses that have ended, kept on a rank to guess others of the same prompt from; the oldest go first.',
  ),
};
