import { spawnSync } from 'node:child_process';
import { resolve } from 'node:path';

test('reading and checking configurations loads no grader, manager, sandbox or native code', () => {
  const dist = resolve(__dirname, '../../dist');
  const script = `require(${JSON.stringify(`${dist}/config/config.js`)});
    console.log(Object.keys(require.cache).join('\\n'));`;
  const { stdout } = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' });
  const loaded = stdout.trim().split('\n');
  expect(loaded).toContain(`${dist}/config/config.js`);
  const own = loaded.filter((path) => path.startsWith(dist)).map((path) => path.slice(dist.length + 1));
  expect(own.filter((path) => /^reward\/(?!contract\/)|^(sandbox|worker|controller)\//.test(path))).toEqual(
    [],
  );
  expect(loaded.filter((path) => /compute-engine|p-limit|grpc|\.node$/.test(path))).toEqual([]);
});
