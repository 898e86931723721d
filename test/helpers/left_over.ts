import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';

// Ends what a test has started and left running: it would compute beside the next one. What a test starts ends with the test, what
// beforeAll starts with the file. Processes are found by a mark in their environment, which they hand on to all that they start.

const MARK = 'TROUPE_TEST_MARK';

interface Started {
  mark: string;
  /** What it is and has said, when it should have ended by itself and has not; null: nothing to tell. */
  report(): string | null;
}

const ofFile: Started[] = [];
const ofTest: Started[] = [];
let current = ofFile;
beforeEach(() => {
  current = ofTest;
});
afterEach(() => {
  current = ofFile;
  endAll(ofTest);
});
afterAll(() => endAll(ofFile));

/** Variables for the environment of a process that is to end with the test that starts it. */
export function marked(report: Started['report'] = () => null): Record<string, string> {
  const variables = unlisted();
  current.push({ mark: variables[MARK] as string, report });
  return variables;
}

/** The same for a process that the file ends in an afterAll of its own, which comes after the one here. */
export const unlisted = (): Record<string, string> => ({ [MARK]: randomUUID() });

function endAll(list: Started[]): void {
  for (const { mark, report } of list.splice(0)) {
    const told = report();
    if (told !== null)
      process.stderr.write(`left running by ${expect.getState().currentTestName}: ${told}\n`);
    endWithEnvironment(`${MARK}=${mark}`);
  }
}

/** Ends all processes whose environment has this text, and those that they start meanwhile. */
export function endWithEnvironment(text: string): void {
  for (let round = 0; round < 20; round++) {
    const found = withEnvironment(text);
    if (found.length === 0) return;
    for (const pid of found) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended meanwhile
      }
    }
  }
}

/** Processes whose environment has this text; those that have ended and are only waited for have none. */
export function withEnvironment(text: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .map(Number)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'utf8').includes(text);
      } catch {
        return false;
      }
    });
}
