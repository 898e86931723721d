const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

/**
 * Fails early, with what to run, when the worker program is not built. The addon is checked where a test needs it.
 * Whatever tests and their processes leave among the temporary files goes with one directory: see jest_teardown.js.
 */
module.exports = async function setup() {
  const worker = path.join(__dirname, '..', 'dist', 'worker', 'main.js');
  if (!fs.existsSync(worker)) {
    throw new Error(`${worker} is missing: run \`npm test\`, or \`npm run build\` and then jest again.`);
  }
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'troupe-jest-'));
  // Programs in a sandbox are other users, and have their directories below it.
  fs.chmodSync(scratch, 0o711);
  process.env.TMPDIR = scratch;
  globalThis.troupeScratch = scratch;
};
