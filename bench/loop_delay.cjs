// Preloaded into the worker of bench/rollout_engine.mjs: at its end it writes how long Node's loop was held up at most, milliseconds, to TROUPE_LOOP_DELAY.
const { writeFileSync } = require('node:fs');
const { monitorEventLoopDelay } = require('node:perf_hooks');

const file = process.env.TROUPE_LOOP_DELAY;
if (file && /worker.main\.js$/.test(process.argv[1] ?? '')) {
  const delays = monitorEventLoopDelay({ resolution: 1 });
  delays.enable();
  // What is loaded at the start counts for nothing.
  process.on('SIGUSR2', () => delays.reset());
  process.on('exit', () => writeFileSync(file, String(delays.max / 1e6)));
}
