// trainer.ui: one server for all runs of a directory, as a process of its own, which is there as long as it is wanted.
import { existsSync, mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot as ROOT } from '../../ts/install/package_root';
import { sharedServer } from '../../ts/ui/shared_server';

const note = (directory: string): { pid: number; address: string } =>
  JSON.parse(readFileSync(join(directory, '.troupe-ui.json'), 'utf8'));

const BUILT = existsSync(join(ROOT, 'ui/dist/index.html'));
if (!BUILT) console.log('test/dist/ui_shared.test.ts is skipped: the page is not built (npm run build)');

(BUILT ? describe : describe.skip)('one server for the runs of a directory', () => {
  const directory = mkdtempSync(join(tmpdir(), 'ui-shared-'));
  const options = { directory, host: '127.0.0.1', port: 0 };
  const started = new Set<number>();
  afterAll(() => {
    for (const pid of started) process.kill(pid, 'SIGTERM');
  });

  test('the first run starts it, the next finds it; its address works, its token is for its owner alone', async () => {
    const address = await sharedServer(options);
    const { pid } = note(directory);
    started.add(pid);
    expect(statSync(join(directory, '.troupe-ui.json')).mode & 0o077).toBe(0);
    expect(await sharedServer(options)).toBe(address);
    expect(note(directory).pid).toBe(pid);
    const answer = await fetch(address, { redirect: 'manual' });
    expect(answer.status).toBe(303);
    const cookie = (answer.headers.get('set-cookie') ?? '').split(';')[0] as string;
    const page = await fetch(new URL('/', address), { headers: { cookie } });
    expect(await page.text()).toContain('<title>Troupe</title>');
    expect((await fetch(new URL('/', address))).status).toBe(401);
  });

  test('one that is gone is replaced', async () => {
    const { pid, address } = note(directory);
    process.kill(pid, 'SIGKILL');
    started.delete(pid);
    const next = await sharedServer(options);
    started.add(note(directory).pid);
    expect(next).not.toBe(address);
    expect((await fetch(next, { redirect: 'manual' })).status).toBe(303);
  });

  test('a note that is damaged, or that others may write, is not believed', async () => {
    const other = mkdtempSync(join(tmpdir(), 'ui-shared-'));
    writeFileSync(
      join(other, '.troupe-ui.json'),
      JSON.stringify({ pid: 1, address: 'http://127.0.0.1:1/?token=x', directory: other }),
      { mode: 0o666 },
    );
    const address = await sharedServer({ ...options, directory: other });
    started.add(note(other).pid);
    expect(address).not.toContain(':1/');
    expect(note(other).address).toBe(address);
  });

  test('an address that cannot be had is an error with a reason', async () => {
    const other = mkdtempSync(join(tmpdir(), 'ui-shared-'));
    const port = Number(new URL(note(directory).address).port);
    await expect(sharedServer({ ...options, directory: other, port })).rejects.toThrow(/is in use/);
  });
});
