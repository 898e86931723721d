import type { ResolvedConfig } from '../schema/ppo_schema';

type TeacherKeys = ResolvedConfig['distillation']['teacher_models']['teacher_model'];

export interface TeacherConfig {
  /** Of its keys. */
  section: string;
  keys: TeacherKeys;
}

const SECTION = 'distillation.teacher_models';
/** The name of the only teacher, which holds where no other is named. */
const ONLY = 'teacher_model';

/** The teachers of a run, in the order of the configuration; none where nothing is distilled. */
export function teachersOf({ distillation }: ResolvedConfig): TeacherConfig[] {
  if (!distillation.enabled) return [];
  const all = Object.entries(distillation.teacher_models as Readonly<Record<string, TeacherKeys>>);
  const others = all.filter(([name]) => name !== ONLY);
  return (others.length > 0 ? others : all).map(([name, keys]) => ({ section: `${SECTION}.${name}`, keys }));
}

/** Whether the only teacher is given beside others. */
export const hasBoth = ({ distillation }: ResolvedConfig): boolean =>
  Object.keys(distillation.teacher_models).length > 1 &&
  distillation.teacher_models.teacher_model.model_path !== null;
