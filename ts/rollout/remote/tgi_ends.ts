import path from 'node:path';
import { readJsonObject } from '../../data/tokenizer_files';

/**
 * What ends a response of TGI 3.3 (`StoppingCriteria.from_pb`): `eos_token_id` of generation_config.json where that is a list, else the tokenizer's
 * `eos_token` alone.
 */
export function tgiEndTokenIds(model: string, tokenizer: { readonly eosId: number | null }): number[] {
  const listed = readJsonObject(path.join(model, 'generation_config.json'))?.['eos_token_id'];
  if (Array.isArray(listed)) return listed.filter((id): id is number => Number.isInteger(id));
  return tokenizer.eosId === null ? [] : [tokenizer.eosId];
}
