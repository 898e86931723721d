// Any program as an agent: what it is given, what becomes of it and of what it has started.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Agent } from '../../../ts/agent/define';
import { commandAgent } from '../../../ts/agent/loops/command';
import { marked, withEnvironment } from '../../helpers/left_over';
import { run, sessions, task } from './endpoint_world';

afterAll(() => sessions.close());

const until = async (condition: () => boolean): Promise<void> => {
  for (const end = Date.now() + 30_000; !condition() && Date.now() < end; ) await sleep(5);
};

describe('any program', () => {
  const script = (code: string): Agent => commandAgent([process.execPath, '-e', code]);
  const ASK = `const task = JSON.parse(process.env.TROUPE_TASK);
    const ask = (content) => fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST',
      headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY },
      body: JSON.stringify({ model: 'x', messages: [{ role: 'user', content }] }) }).then((r) => r.json());`;

  test('finds the policy in its environment and prints its result', async () => {
    const trajectory = await run(
      script(`${ASK} ask(task.prompt[0].content).then((reply) => {
        console.log('a log line');
        console.log(JSON.stringify({ reward: Number(task.groundTruth) / 84, said: reply.choices[0].message.content })); });`),
      { say: () => 'forty-two' },
    );
    expect(trajectory).toMatchObject({ reward: 0.5, extra: { said: 'forty-two' }, error: null });
    expect(trajectory.calls).toHaveLength(1);
  });

  test('does not start where its trajectory was over before its session was open', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'troupe-command-'));
    const file = join(directory, 'started');
    const over = new AbortController();
    const context = {
      endpoint: async () => {
        over.abort(new Error('time is up'));
        return { openaiBaseUrl: '', anthropicBaseUrl: '', apiKey: '' };
      },
      signal: over.signal,
      note: () => undefined,
    } as unknown as Parameters<Agent['run']>[1];
    const ended = script(`require('fs').writeFileSync(${JSON.stringify(file)}, '')`).run(task(), context);
    await expect(ended).rejects.toThrow('time is up');
    expect(existsSync(file)).toBe(false);
    rmSync(directory, { recursive: true });
  });

  test.each([
    ['ends with an error', 'console.error("no key"); process.exit(3)', 20, /ended with status 3: no key/],
    ['kills itself', 'process.kill(process.pid, "SIGKILL")', 20, /ended with SIGKILL/],
    ['hangs', 'setInterval(() => {}, 1000)', 0.5, /did not end within 0.5 s/],
  ])('one that %s costs its trajectory', async (_, code, timeout, expected) => {
    const trajectory = await run(script(code), { timeout });
    expect(trajectory.error).toMatch(expected);
  });

  test('one that prints 100 MB is read to its end', async () => {
    const trajectory = await run(
      script(`const line = 'x'.repeat(1023) + '\\n';
      let left = 100 * 1024; const more = () => { while (left-- > 0) if (!process.stdout.write(line)) return process.stdout.once('drain', more);
      process.stdout.write('0.75\\n'); }; more();`),
      { timeout: 60 },
    );
    expect(trajectory).toMatchObject({ error: null, reward: 0.75 });
  });

  test.each([
    ['in the background', ''],
    ['in a session of its own', 'setsid '],
  ])('what it has started %s does not hold it up', async (_, before) => {
    const variables = marked();
    const [mark] = Object.entries(variables).map(([name, value]) => `${name}=${value}`) as [string];
    const command = `${mark} ${before}sleep 1000 & echo '{"answer": "forty-two"}'`;
    const trajectory = await run(commandAgent([command]), { timeout: 10 });
    expect(trajectory).toMatchObject({ error: null, answer: 'forty-two' });
    if (before !== '') return;
    await until(() => withEnvironment(mark).length === 0);
    expect(withEnvironment(mark)).toEqual([]);
  });

  test.each([
    ['a short task', 'What is 17 + 25?', true],
    ['one as long as its variable may be, in bytes', 'ü'.repeat(50_000), true],
    ['one that is longer than a variable can be', 'ü'.repeat(150_000), false],
  ])('%s is on standard input, and in its variable while that can hold it', async (_, content, whole) => {
    const trajectory = await run(
      script(`let text = ''; process.stdin.on('data', (part) => { text += part; }).on('end', () => {
        const task = process.env.TROUPE_TASK;
        console.log(JSON.stringify({ length: JSON.parse(text).prompt[0].content.length, same: task === text, there: task !== undefined })); });
        process.stdin.setEncoding('utf8');`),
      { one: { ...task(), prompt: [{ role: 'user', content }] } },
    );
    expect(trajectory).toMatchObject({
      error: null,
      extra: { length: content.length, same: whole, there: whole },
    });
  });

  const PARENT = [
    '-r',
    join(__dirname, '../../helpers/register_ts.js'),
    join(__dirname, '../../helpers/agents/command_parent.ts'),
  ];

  test('no file descriptor for its pipes costs its trajectory, and not the run', () => {
    const limited = ['-c', 'ulimit -n 64; exec "$@"', 'sh', process.execPath, ...PARENT, 'true'];
    const env = { ...process.env, STARVED: '1' };
    const { status, stdout } = spawnSync('/bin/sh', limited, { env, encoding: 'utf8' });
    expect({ status, stdout }).toEqual({ status: 0, stdout: expect.stringMatching(/^spawn .* EMFILE\n$/) });
  });

  describe('ends with the process that has started it', () => {
    const directory = mkdtempSync(join(tmpdir(), 'command-'));
    afterAll(() => rmSync(directory, { recursive: true }));

    test.each([
      ['is killed', 'SIGKILL', (file: string) => `sleep 1000 & touch ${file}; sleep 1000; true`],
      ['leaves at once', 'SIGINT', (file: string) => `sleep 1000 & touch ${file}; sleep 1000; true`],
    ] as const)(
      'when that %s',
      async (_, signal, line) => {
        const variables = marked();
        const file = join(directory, signal);
        const parent = spawn(process.execPath, [...PARENT, line(file)], {
          env: { ...process.env, ...variables },
          stdio: ['ignore', 'inherit', 'inherit'],
        });
        await until(() => existsSync(file));
        expect(existsSync(file)).toBe(true);
        parent.kill(signal);
        const [mark] = Object.entries(variables).map(([name, value]) => `${name}=${value}`) as [string];
        await until(() => withEnvironment(mark).length === 0);
        expect(withEnvironment(mark)).toEqual([]);
      },
      70_000,
    );
  });
});
