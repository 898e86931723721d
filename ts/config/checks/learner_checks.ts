import { checkMasterDtype, type EngineDtype } from '../derived/master_dtype';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { checkMuon } from './muon_checks';
import { checkOptim } from './optim_checks';

/** Of what a role trains. */
interface Masters {
  /** Section of `model_dtype`, and of `dtype` where no `dtypeKey` says where that is. */
  key: string;
  model_dtype: EngineDtype;
  /** To compute in; null: by device. */
  dtype: EngineDtype | null;
  dtypeKey?: string;
  /** These alone are trained, in float32. */
  adapters: boolean;
}

/** `section`: where `optim` stands, '' for the root; `runSteps`: of the run, null where they follow from the data. */
export function checkLearner(
  section: string,
  optim: ResolvedConfig['critic']['optim'],
  runSteps: number | null,
  { key, model_dtype, dtype, dtypeKey = `${key}.dtype`, adapters }: Masters,
): void {
  const at = section === '' ? 'optim' : `${section}.optim`;
  checkMasterDtype(key, model_dtype, dtypeKey, dtype);
  checkOptim(at, optim, runSteps);
  checkMuon(at, optim, { key: `${key}.model_dtype`, dtype: model_dtype, adapters });
}
