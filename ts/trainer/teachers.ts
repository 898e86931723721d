// The models that a policy learns from on its own responses (on-policy distillation).
import { Actor } from '../actor/actor';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import { teachersOf } from '../config/derived/teachers';
import type { WorkerGroup } from '../controller/worker_group';
import { runsOf } from '../engine/batch_part';
import { ConfigError } from '../errors';
import { engineOptions } from '../roles/role_options';
import { teacherTokens } from '../roles/settings';
import { teacherSettings } from '../roles/teacher_settings';

type Teacher = Pick<Actor, 'computeLogProb'>;
/** By the data_source of the prompts that they are for; a single one is for all. */
export type Teachers = ReadonlyMap<string | null, Teacher>;

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
