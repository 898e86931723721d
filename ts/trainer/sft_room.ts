// How long an example may be, whatever data.max_length says: what a micro-batch holds, and the model has positions for.
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedSftConfig } from '../config/config';
import { sftLayout } from '../config/derived/sft_layout';
import { contextOf } from '../config/derived/ulysses';
import type { SftRoom } from '../data/sft_dataset';
import { sftSettings } from '../roles/role_settings';

/** null: every example that is not longer than data.max_length fits. Reads config.json of the model. */
export function sftRoom(config: ResolvedSftConfig): SftRoom | null {
  const { data, ulysses_sequence_parallel_size: ulysses } = config;
  const { max_length: longest, max_token_len_per_gpu: perRank } = data;
  const role = sftSettings(config);
  const ranks = ulysses * contextOf(sftLayout(config));
  const { maxPositions } = readModelShape(role.model, role.head, role.keys.model, role).config;
  const shared = ranks === 1 ? '' : ` x ${ranks} ranks that share a micro-batch`;
  const capacity: SftRoom = {
    tokens: perRank * ranks,
    limit: `the ${perRank * ranks} tokens of a micro-batch (data.max_token_len_per_gpu ${perRank}${shared})`,
    remedy: `raise data.max_token_len_per_gpu to ${Math.ceil(longest / ranks)}`,
  };
  const positions: SftRoom = {
    tokens: maxPositions,
    limit: `the ${maxPositions} positions of the model in ${role.model}`,
    remedy: 'leave the row out',
  };
  const least = capacity.tokens < positions.tokens ? capacity : positions;
  return least.tokens < longest ? least : null;
}
