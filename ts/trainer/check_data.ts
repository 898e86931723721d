// What a look into the data files of a run shows, without its model and before any work.
import { existsSync } from 'node:fs';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { dataSourceColumn, labelsOf } from '../data/labels';
import { checkEnough } from '../data/loader';
import { checkPrompt } from '../data/prompt';
import { column, type Projection, promptColumn, type Row } from '../data/row';
import { RowFiles } from '../data/row_file';
import { checkExample, exampleColumns } from '../data/sft_dataset';
import { sftColumns } from './sft_data';
import { promptBatch } from './training_data';

/** What rows have to have, and whether one has it. */
interface Wanted {
  columns: Projection;
  check: (row: Row, where: string) => void;
}

/**
 * That the files which are there can be read, have rows with the columns that the run reads, and enough of them for a batch. Looked at are all rows of small JSON
 * files, of others the first; lengths, chat templates and images need the model, and are seen when the run starts. What `data.custom_cls` makes of files is
 * known when it has run.
 * @returns the files that are not there
 * @throws TroupeError IO or INVALID_DATA naming file and row
 */
export async function checkDataRows(config: ResolvedConfig | ResolvedSftConfig): Promise<string[]> {
  const { train_files: train, val_files: validation, train_max_samples: most } = config.data;
  const isRl = 'actor_rollout_ref' in config;
  if (isRl && config.data.custom_cls.path !== null) return [];
  const wanted = isRl ? wantedPrompts(config) : wantedExamples(config);
  const absent = [...train, ...(validation ?? [])].filter((file) => !existsSync(file));
  const rows = await checkedRows(train, wanted);
  await checkedRows(validation ?? [], wanted);
  if (train.every((file) => existsSync(file))) {
    const batch = isRl ? promptBatch(config) : { batchSize: config.data.train_batch_size };
    checkEnough(most < 0 ? rows : Math.min(rows, most), batch);
  }
  return [...new Set(absent)];
}

function wantedPrompts({ data }: ResolvedConfig): Wanted {
  const { prompt_key: prompt, reward_fn_key: source } = data;
  return {
    columns: {
      required: [promptColumn(prompt), dataSourceColumn(source), 'reward_model'],
      optional: ['extra_info'],
    },
    check: (row, where) => {
      checkPrompt(column(row, promptColumn(prompt), where), where);
      labelsOf(row, source, where);
    },
  };
}

function wantedExamples(config: ResolvedSftConfig): Wanted {
  const columns = sftColumns(config);
  return {
    columns: { required: exampleColumns(columns), optional: [] },
    check: (row, where) => checkExample(row, columns, where),
  };
}

/** @returns how many rows the files that are there have */
async function checkedRows(paths: readonly string[], { columns, check }: Wanted): Promise<number> {
  const there = paths.filter((file) => existsSync(file));
  if (there.length === 0) return 0;
  const rows = await RowFiles.open(there, columns);
  for (const file of rows.files) {
    const looked = file.inMemory ? file.length : Math.min(1, file.length);
    for (let i = 0; i < looked; i++) check(await file.row(i), file.where(i));
    file.forget();
  }
  return rows.length;
}
