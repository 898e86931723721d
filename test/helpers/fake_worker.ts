import { runWorker } from '../../ts/worker/worker';
import { createFakeBinding } from './fake_binding';

// A worker process over the fake binding. FAKE_WORKER says how its start goes wrong: 'no-addon', 'exit', 'no-dial',
// 'wrong-token'; with ':1' only on that rank. 'far': the process that started it is on another host.
const [fault, rank] = (process.env['FAKE_WORKER'] ?? '').split(':');
const active = rank === undefined || rank === process.env['RANK'] ? fault : '';
if (active === 'exit') {
  console.error('first line\ncannot go on');
  process.exit(9);
}
if (active === 'far') delete process.env['TROUPE_PARENT_PID'];
if (active === 'wrong-token') process.env['TROUPE_TOKEN'] = 'guess';
if (active === 'no-dial') {
  console.error('sitting here');
  setInterval(() => {}, 1000);
} else {
  runWorker(process.env, () => {
    if (active === 'no-addon') {
      throw Object.assign(new Error('no addon here'), { troupeCode: 'NATIVE_UNAVAILABLE' });
    }
    return createFakeBinding();
  });
}
