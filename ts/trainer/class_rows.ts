// The rows that a data set class in Python makes of the data files of a run.
import { existsSync } from 'node:fs';
import path from 'node:path';
import type { ResolvedConfig } from '../config/config';
import { writeRows } from '../data/python/dataset_process';
import type { GivenSet, WrittenSet } from '../data/python/protocol';
import { RowSpool } from '../data/python/row_spool';
import type { RowPath } from '../data/row';
import { ConfigError } from '../errors';

/** Of one of the sets of files. */
export interface SetRows {
  paths: readonly RowPath[];
  /** SHA-256 of them; undefined: they are the files' own. */
  digest?: string;
}

export interface DataRows {
  train: SetRows;
  /** null: no validation. */
  validation: SetRows | null;
  notes: readonly string[];
  close(): void;
}

/** Keys of verl's section that have no meaning here, with its defaults, for code that reads them. */
const VERLS = {
  return_raw_chat: true,
  return_full_prompt: false,
  return_raw_input_ids: false,
  return_multi_modal_inputs: true,
  need_tools_kwargs: false,
  filter_overlong_prompts_workers: 1,
  dataloader_num_workers: 8,
  validation_shuffle: false,
  trust_remote_code: false,
  use_shm: false,
  video_key: 'videos',
  audio_key: 'audios',
};

/** The section `data` as verl gives it to a class. */
function sectionOf(config: ResolvedConfig, seed: number): object {
  const { custom_cls, mm_processor_kwargs: pixels, ...data } = config.data;
  const { tool_config_path, function_tool_path } = config.actor_rollout_ref.rollout.multi_turn;
  return {
    ...VERLS,
    ...data,
    // The trainer leaves prompts out: a second count, by another tokenizer, would only cost time.
    filter_overlong_prompts: false,
    tool_config_path,
    function_tool_path,
    seed,
    mm_processor_kwargs: Object.fromEntries(Object.entries(pixels).filter(([, limit]) => limit !== null)),
    custom_cls: { path: custom_cls.path, name: custom_cls.name },
    ...custom_cls.config,
  };
}

/** @throws ConfigError when the file of the class is not there */
export function checkClassFile({ data }: ResolvedConfig): void {
  const key = 'data.custom_cls.path';
  const { path: module } = data.custom_cls;
  if (module === null || existsSync(module)) return;
  throw new ConfigError(`${key}: there is no file ${path.resolve(module)}`, key);
}

/**
 * The rows of `data.train_files` and `data.val_files`: as they lie there, or what `data.custom_cls` makes of them, which is run once; `signal` gives it up.
 * @throws the reason of `signal`; ConfigError naming the key; TroupeError INVALID_DATA naming the class, its row and where in it something went wrong
 */
export async function rowsOfData(
  config: ResolvedConfig,
  seed: number,
  readsImages: boolean,
  signal?: AbortSignal,
): Promise<DataRows> {
  const { data, actor_rollout_ref } = config;
  const { path: module, name, python, timeout } = data.custom_cls;
  if (module === null || name === null) {
    const validation = data.val_files === null ? null : { paths: data.val_files };
    return { train: { paths: data.train_files }, validation, notes: [], close: () => undefined };
  }
  checkClassFile(config);
  const given: GivenSet[] = [
    { what: 'training', files: data.train_files, max_samples: data.train_max_samples },
  ];
  if (data.val_files !== null)
    given.push({ what: 'validation', files: data.val_files, max_samples: data.val_max_samples });
  const spools: RowSpool[] = [];
  const close = (): void => {
    for (const spool of spools.splice(0)) spool.close();
  };
  try {
    for (const _ of given) spools.push(RowSpool.create());
    const setup = {
      config: sectionOf(config, seed),
      tokenizer: actor_rollout_ref.model.tokenizer_path ?? actor_rollout_ref.model.path,
      chat_template: actor_rollout_ref.model.custom_chat_template,
      reads_images: readsImages,
      columns: { prompt: data.prompt_key, source: data.reward_fn_key, images: data.image_key },
      timeout,
    };
    const written = await writeRows({ path: module, name, python }, setup, given, spools, signal);
    const rows = ({ what, digest }: WrittenSet, i: number): SetRows => ({
      paths: [{ path: (spools[i] as RowSpool).path, name: `${name} of ${module}, ${what}` }],
      digest,
    });
    const [train, validation] = written.map(rows) as [SetRows, SetRows?];
    const notes = written.map(
      ({ what, rows: n }) => `data.custom_cls: ${name} of ${module} made ${n} ${what} rows`,
    );
    return { train, validation: validation ?? null, notes, close };
  } catch (error) {
    close();
    throw error;
  }
}
