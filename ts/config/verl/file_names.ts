// Names of files and directories among verl's values.
import { existsSync } from 'node:fs';
import { expandHome } from '../../base/home';

const KEYS =
  /(^|\.)(train_files|val_files|path|model_path|tokenizer_path|tool_config_path|function_tool_path|default_local_dir|resume_from_path|.*_data_dir)$/;
const MODEL_KEYS = /model\.path$|^distillation\..*model_path$/;

/** The value of a key; verl expands ~ in the names of files. */
export const withHome = (key: string, value: unknown): unknown => (KEYS.test(key) ? expanded(value) : value);

function expanded(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(expanded);
  return typeof value === 'string' ? expandHome(value) : value;
}

/** Whether the value of a key is a model's name on the Hugging Face hub, and no directory. */
export const isHubName = (key: string, value: unknown): boolean =>
  MODEL_KEYS.test(key) && typeof value === 'string' && /^[\w-]+\/[\w.-]+$/.test(value) && !existsSync(value);
