import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Command, isAlive } from '../helpers/e2e_process';
import { marked, withEnvironment } from '../helpers/left_over';

// The tests below stand in their order: what one leaves, the next one looks for.

const started: { process: ChildProcess; mark: string }[] = [];

/** A shell whose child has a session of its own and takes no notice of signals. */
async function start(): Promise<void> {
  const mark = marked();
  const child = spawn('sh', ['-c', 'setsid sh -c \'trap "" TERM; sleep 100\' & echo up; wait'], {
    env: { ...process.env, ...mark },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  started.push({ process: child, mark: Object.values(mark)[0] as string });
}

beforeAll(start);

test('what a test starts is there while it runs', async () => {
  await start();
  for (const { mark } of started) expect(withEnvironment(mark).length).toBeGreaterThanOrEqual(1);
});

test('after it all of that has ended, and what is of the whole file has not', () => {
  const [ofFile, ofTest] = started;
  expect(withEnvironment(ofTest?.mark as string)).toEqual([]);
  expect(isAlive(ofTest?.process.pid as number)).toBe(false);
  expect(isAlive(ofFile?.process.pid as number)).toBe(true);
});

test('a command that does not end within its limit is ended, and says so', async () => {
  const command = new Command([], { prefix: ['sh', '-c', 'sleep 100 & sleep 100; :', 'sh'], limitMs: 300 });
  const exit = await command.exited;
  expect(exit).toMatchObject({ code: null, signal: 'SIGKILL', stderr: '\nended by the test after 0.3 s\n' });
});

test('a wait that comes to nothing ends with what the command has said', async () => {
  const command = new Command([], { prefix: ['sh', '-c', 'echo so far; sleep 100', 'sh'] });
  await command.until('a word', () => command.said(/so far/));
  await expect(command.until('the impossible', () => false, 100)).rejects.toThrow(
    /the impossible has not come within 0\.1 s:\nso far/,
  );
  command.killGroup('SIGKILL');
  await command.exited;
});
