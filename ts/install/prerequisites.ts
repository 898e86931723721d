import path from 'node:path';
import { packageRoot } from './package_root';

export interface Prerequisite {
  name: string;
  ok: boolean;
  /** What is there, or what is wrong, as a sentence. */
  found: string;
  /** What to do when it is not ok. */
  fix: string;
}

/** scripts/prerequisites.js is plain JavaScript, because the bootstrap runs it before anything is compiled. */
export function checkPrerequisites(names?: string[]): Prerequisite[] {
  const script = require(path.join(packageRoot, 'scripts', 'prerequisites.js')) as {
    checkPrerequisites: (names?: string[]) => Prerequisite[];
  };
  return script.checkPrerequisites(names);
}
