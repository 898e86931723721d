// Scores of responses that are there already.
import { printable } from '../base/printable';
import { toJson } from '../base/text';
import { type ResolvedConfig, resolveConfig } from '../config/config';
import { needsRewardModel } from '../config/derived/roles';
import { readConfig } from '../config/reading/read';
import { dataSourceColumn, labelsOf } from '../data/labels';
import { column, type Row, type WantedColumn } from '../data/row';
import { openRowFile } from '../data/row_file';
import { ConfigError, TroupeError } from '../errors';
import { formatNumber } from '../logging/console_format';
import type { RewardManager, RewardSample } from '../reward/contract/types';
import { codeRunner } from '../trainer/code_runner';
import { configuredReward } from '../trainer/configured_reward';
import type { Metrics } from '../trainer/metrics/metrics';
import { validationMetrics } from '../trainer/metrics/validation_metrics';
import { checkOutput, checkOutputRow, writeRows } from './row_output';

export interface EvaluateOptions {
  /** A .jsonl, .json or .parquet file in verl's schema with a column of responses. */
  file: string;
  /** Whose section `reward` holds; null: the defaults. */
  config: string | null;
  overrides: readonly string[];
  /** A text, or a list of them, of each row. */
  responseKey: string;
  scoreKey: string;
  /** A new .jsonl file with the rows and their scores; null: none. */
  output: string | null;
  /** All metrics as one JSON object. */
  json: boolean;
}

interface Answered {
  row: Row;
  samples: RewardSample[];
}

/** Rows whose responses are scored at a time. */
const ROWS = 1024;

/**
 * `troupe eval`: the metrics of a validation, of responses in a file. Returns the exit code.
 * @throws ConfigError, TroupeError INVALID_DATA naming the row, REWARD_FAILED
 */
export async function evaluate(
  options: EvaluateOptions,
  write: (text: string) => void = (text) => process.stdout.write(text),
): Promise<number> {
  const { file, output, scoreKey } = options;
  if (output !== null) checkOutput('eval', output);
  const config = configOf(options);
  const rows = await readRows(options, config);
  const { reward, prepare } = configuredReward(config, codeRunner(config));
  const dataSources = rows.flatMap(({ samples }) => samples.map((sample) => sample.dataSource));
  try {
    await prepare(new Set(dataSources));
    const { variables, failures } = await scoresOf(reward, rows);
    const uids = rows.flatMap(({ samples }, i) => samples.map(() => i));
    const metrics = validationMetrics(dataSources, uids, variables);
    if (output !== null) writeRows(output, withScores(rows, variables['reward'] as unknown[], scoreKey));
    write(options.json ? `${toJson(metrics)}\n` : summary(file, rows.length, uids.length, failures, metrics));
  } finally {
    await reward.close?.();
  }
  return 0;
}

/** Keys that only training reads, where there is no configuration of a run. */
const NO_TRAINING = 'data: { train_files: none }\nactor_rollout_ref: { model: { path: none } }\n';

function configOf({ config: file, overrides }: EvaluateOptions): ResolvedConfig {
  const source = file === null ? { file: 'the command line', text: NO_TRAINING } : readConfig(file);
  const config = resolveConfig(source, overrides);
  const refuse = (key: string, why: string): never => {
    throw new ConfigError(`${key}: ${why}`, key);
  };
  if (needsRewardModel(config))
    refuse(
      'reward.reward_model.enable',
      'a reward model scores in workers: troupe eval has none, use trainer.val_only=true of troupe train',
    );
  if (config.reward.reward_kwargs.overlong_buffer_cfg.enable)
    refuse(
      'reward.reward_kwargs.overlong_buffer_cfg.enable',
      'counts tokens of responses, and a file has their texts: set it to false',
    );
  return config;
}

async function readRows(
  { file, responseKey, output, scoreKey }: EvaluateOptions,
  { data }: ResolvedConfig,
): Promise<Answered[]> {
  const answers: WantedColumn = { name: responseKey, key: '--response-key' };
  const required = [answers, dataSourceColumn(data.reward_fn_key), 'reward_model'];
  const read = { required, optional: [data.prompt_key, 'extra_info'] };
  const opened = await openRowFile(file, output === null ? read : null);
  if (opened.length === 0) throw new TroupeError('INVALID_DATA', `[data] ${file}: there are no rows`);
  const rows: Answered[] = [];
  for (let i = 0; i < opened.length; i++) {
    const [row, where] = [await opened.row(i), opened.where(i)];
    if (output !== null) checkOutputRow(row, scoreKey, '--score-key', where);
    const labels = labelsOf(row, data.reward_fn_key, where);
    const prompt = promptText(row[data.prompt_key]);
    const samples = responsesOf(column(row, answers, where), responseKey, where).map((response) => ({
      prompt,
      response,
      responseTokens: new Int32Array(0),
      ...labels,
      numTurns: 2,
    }));
    rows.push({ row, samples });
  }
  return rows;
}

function responsesOf(value: unknown, key: string, where: string): string[] {
  const responses = Array.isArray(value) ? (value as unknown[]) : [value];
  if (responses.length > 0 && responses.every((one) => typeof one === 'string')) return responses as string[];
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected ${key} to be a text or a list of texts, got ${toJson(value).slice(0, 100)}`,
  );
}

/** Of a conversation the texts of its messages, a line each. */
function promptText(prompt: unknown): string {
  if (!Array.isArray(prompt)) return typeof prompt === 'string' ? prompt : '';
  const texts = prompt.map((message: { content?: unknown } | null) => message?.content);
  return texts.filter((text) => typeof text === 'string').join('\n');
}

/** Columns over all responses; `reward` is the score, whatever else a function calls so. */
async function scoresOf(
  reward: RewardManager,
  rows: readonly Answered[],
): Promise<{ variables: Record<string, unknown[]>; failures: number }> {
  const count = rows.reduce((sum, { samples }) => sum + samples.length, 0);
  const column = (): unknown[] => new Array<unknown>(count).fill(undefined);
  // A function may give a name that every object has something under.
  const variables: Record<string, unknown[]> = Object.create(null);
  variables['reward'] = column();
  let [at, failures] = [0, 0];
  for (let start = 0; start < rows.length; start += ROWS) {
    const samples = rows.slice(start, start + ROWS).flatMap((row) => row.samples);
    const { scores, extras, failures: failed } = await reward.score(samples);
    const columns: Record<string, ArrayLike<unknown>> = { ...extras, reward: scores };
    for (const [name, values] of Object.entries(columns)) {
      variables[name] ??= column();
      for (let i = 0; i < values.length; i++) (variables[name] as unknown[])[at + i] = values[i];
    }
    at += samples.length;
    failures += failed;
  }
  return { variables, failures };
}

/** `scores`: of the responses of all rows, one behind another. */
function withScores(rows: readonly Answered[], scores: readonly unknown[], scoreKey: string): Row[] {
  let end = 0;
  return rows.map(({ row, samples }) => {
    const start = end;
    end += samples.length;
    return { ...row, [scoreKey]: scores.slice(start, end) };
  });
}

function summary(file: string, rows: number, responses: number, failures: number, metrics: Metrics): string {
  const core = Object.entries(metrics)
    .filter(([name]) => name.startsWith('val-core/'))
    .map(([name, value]) => [printable(name), value] as const);
  const width = Math.max(...core.map(([name]) => name.length));
  const failed = failures === 0 ? [] : [`${failures} scored 0 because the reward function failed`];
  return [
    `${file}: ${responses} responses to ${rows} prompts`,
    ...failed,
    ...core.map(([name, value]) => `${name.padEnd(width)}  ${formatNumber(value)}`),
    '',
  ].join('\n');
}
