// The models that a policy learns from on its own responses (on-policy distillation).
import { Actor } from '../actor/actor';
import type { Batch } from '../batch/batch';
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig } from '../config/config';
import { teachersOf } from '../config/derived/teachers';
import type { WorkerGroup } from '../controller/worker_group';
import { compareTokenizers, otherId } from '../data/same_tokenizer';
import { runsOf } from '../engine/batch_part';
import { ConfigError } from '../errors';
import { engineOptions } from '../roles/role_options';
import { teacherTokens } from '../roles/settings';
import { teacherSettings } from '../roles/teacher_settings';

type Teacher = Pick<Actor, 'computeLogProb'>;
/** By the data_source of the prompts that they are for; a single one is for all. */
export type Teachers = ReadonlyMap<string | null, Teacher>;

/** Reads config.json and the tokenizers of all models. @throws ConfigError where token ids differ */
export function checkTeachers(config: ResolvedConfig): void {
  for (const { section, keys } of teachersOf(config)) {
    const key = `${section}.model_path`;
    const path = keys.model_path as string;
    const { config: teacher } = readModelShape(path, 'lm', key);
    checkVocabulary(config, key, path, teacher.vocabSize);
  }
}

/** @throws ConfigError when there are several teachers, and none of them for one of the sources */
export function checkSources(config: ResolvedConfig, dataSources: Iterable<string>): void {
  const keys = teachersOf(config).map(({ keys: { key } }) => key);
  if (keys.length < 2) return;
  for (const source of dataSources) if (!keys.includes(source)) throw noTeacher(source, keys);
}

function noTeacher(source: string, keys: readonly (string | null)[]): ConfigError {
  return new ConfigError(
    `distillation.teacher_models: no teacher is for the data_source ${JSON.stringify(source)} of training prompts: the teachers have the keys ` +
      `${keys.map((key) => JSON.stringify(key)).join(', ')}; give one that key, or leave such prompts out`,
    'distillation.teacher_models',
  );
}

function checkVocabulary(config: ResolvedConfig, key: string, teacher: string, size: number): void {
  const { model } = config.actor_rollout_ref;
  const found = compareTokenizers(model.tokenizer_path ?? model.path, teacher);
  if (typeof found === 'object')
    throw new ConfigError(
      `${key}: the teacher in ${teacher} has another tokenizer than the policy (${model.tokenizer_path ?? model.path}): ` +
        `${JSON.stringify(found.token)} has id ${found.id} there, and the teacher's ${otherId(found)}: a teacher evaluates the token ids of the policy`,
      key,
    );
  const { vocabSize: own } = readModelShape(model.path, 'lm', 'actor_rollout_ref.model.path').config;
  // With one tokenizer the rest of the larger vocabulary is padding.
  if (found === 'same' || own === size) return;
  throw new ConfigError(
    `${key}: the teacher in ${teacher} has a vocabulary of ${size} tokens, and the policy one of ${own}: expected the same, ` +
      'or a tokenizer.json beside both models that lists the same ids',
    key,
  );
}

/** null: nothing is distilled. */
export async function createTeachers(config: ResolvedConfig, group: WorkerGroup): Promise<Teachers | null> {
  const teachers = new Map<string | null, Teacher>();
  const given = teachersOf(config);
  for (const [i, role] of teacherSettings(config).entries()) {
    const options = engineOptions(role, group, config);
    const name = given.length === 1 ? options.name : `${options.name}_${i}`;
    teachers.set(given[i]?.keys.key ?? null, await Actor.create({ ...options, name, optim: null }));
  }
  return teachers.size === 0 ? null : teachers;
}

/**
 * The batch with what the distillation's loss needs of the teachers. Their temperature is 1 whatever that of the rollout, as in verl, whose
 * teachers' log-probs are those of an inference server for a prompt.
 */
export async function withTeachers(config: ResolvedConfig, teachers: Teachers, batch: Batch): Promise<Batch> {
  const topK = teacherTokens(config);
  const parts = partsOf(teachers, batch);
  if (topK > 0) {
    const [teacherTopLogProbs, teacherTopIds]: [Float32Array[], Int32Array[]] = [[], []];
    for (const { teacher, rows, part } of parts) {
      const { topLogProbs, topIds } = await teacher.computeLogProb(part, { topK });
      for (const [k, row] of rows.entries()) {
        teacherTopLogProbs[row] = topLogProbs?.[k] as Float32Array;
        teacherTopIds[row] = topIds?.[k] as Int32Array;
      }
    }
    return batch.with({ teacherTopLogProbs, teacherTopIds });
  }
  const [first] = parts;
  if (first !== undefined && parts.length === 1) {
    const { logProbs } = await first.teacher.computeLogProb(batch);
    return batch.with({ teacherLogProbs: logProbs }, { adopt: true });
  }
  const teacherLogProbs = new Float32Array(batch.numResponseTokens);
  for (const { teacher, rows, part } of parts) {
    const { logProbs } = await teacher.computeLogProb(part);
    let at = 0;
    for (const [begin, end] of runsOf(rows)) {
      const [start, stop] = [batch.responseOffsets[begin] as number, batch.responseOffsets[end] as number];
      teacherLogProbs.set(logProbs.subarray(at, at + stop - start), start);
      at += stop - start;
    }
  }
  return batch.with({ teacherLogProbs }, { adopt: true });
}

interface Part {
  teacher: Teacher;
  /** Ascending. */
  rows: number[];
  part: Batch;
}

/** The sequences of each teacher. */
function partsOf(teachers: Teachers, batch: Batch): Part[] {
  const all = Array.from({ length: batch.size }, (_, i) => i);
  const [only] = teachers.values();
  if (only !== undefined && teachers.size === 1) return [{ teacher: only, rows: all, part: batch }];
  const sources = (batch.get('dataSource') as readonly unknown[]).map(String);
  // Of large files not every source is known before.
  const stray = sources.find((source) => !teachers.has(source));
  if (stray !== undefined) throw noTeacher(stray, [...teachers.keys()]);
  return [...teachers].flatMap(([key, teacher]) => {
    const rows = all.filter((i) => sources[i] === key);
    return rows.length === 0 ? [] : [{ teacher, rows, part: batch.select([]).take(rows) }];
  });
}
