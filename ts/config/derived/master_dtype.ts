// In which precision a role that learns keeps what it trains.
import { ConfigError } from '../../errors';

export type EngineDtype = 'float32' | 'bfloat16';

/** `dtype`: to compute in; null: by device. */
export interface LearnerDtypes {
  dtype: EngineDtype | null;
  masterDtype: EngineDtype;
}

/** Weights that are kept in bfloat16 are computed with as they are. */
export const learnerDtypes = (dtype: EngineDtype | null, masterDtype: EngineDtype): LearnerDtypes => ({
  dtype: masterDtype === 'bfloat16' ? 'bfloat16' : dtype,
  masterDtype,
});

/** @throws ConfigError where `model_dtype` of a section contradicts the dtype to compute in, whose key is `dtypeKey` */
export function checkMasterDtype(
  section: string,
  masterDtype: EngineDtype,
  dtypeKey: string,
  dtype: EngineDtype | null,
): void {
  if (masterDtype === 'float32' || dtype !== 'float32') return;
  const key = `${section}.model_dtype`;
  throw new ConfigError(
    `${key}: expected float32 beside ${dtypeKey} float32, got bfloat16: weights that are kept in bfloat16 are computed with as they ` +
      `are; leave ${dtypeKey} out`,
    key,
  );
}
