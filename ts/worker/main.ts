import { loadBinding } from '../native/loader';
import { runWorker } from './worker';

// The program of a worker process (dist/worker/main.js), started by a launcher of ts/controller.
runWorker(process.env, loadBinding);
