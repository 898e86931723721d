// Refuses sequences that a model cannot take: ids outside its vocabulary, and more tokens than it or a micro-batch has room for.
import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { greatestId } from '../batch/greatest_id';
import type { LoadedModel } from '../checkpoint/model_dir';

/** What bounds the sequences of an engine. */
interface Bounds {
  role: string;
  model: Pick<LoadedModel, 'config' | 'dir'>;
  /** Tokens of a micro-batch. */
  capacity: number;
}

/** @throws TroupeError INVALID_ARGUMENT */
export function checkSequences(where: string, batch: Batch, { role, model, capacity }: Bounds): void {
  const { vocabSize, maxPositions } = model.config;
  const { dir } = model;
  for (let i = 0; i < batch.size; i++) {
    const length = (batch.seqOffsets[i + 1] as number) - (batch.seqOffsets[i] as number);
    if (length > maxPositions) {
      throw badOption(
        where,
        `sequence ${i} has ${length} tokens, more than the ${maxPositions} positions of the model in ${dir}`,
      );
    }
    if (length > capacity) {
      throw badOption(
        where,
        `sequence ${i} has ${length} tokens, more than maxTokensPerMicroBatch = ${capacity}: create the ${role} with a larger one`,
      );
    }
  }
  const tokens = batch.get('tokens');
  if (greatestId(tokens) < vocabSize) return;
  const at = tokens.findIndex((id) => id < 0 || id >= vocabSize);
  const i = batch.seqOffsets.findIndex((offset) => offset > at) - 1;
  throw badOption(
    where,
    `sequence ${i}, position ${at - (batch.seqOffsets[i] as number)}: token id ${tokens[at]} is outside the vocabulary of the model in ${dir} ` +
      `(0 to ${vocabSize - 1}): does the tokenizer belong to the model?`,
  );
}
