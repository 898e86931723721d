const fs = require('node:fs');
const path = require('node:path');

/** Fails early, with what to run, when the worker program is not built. The addon is checked where a test needs it. */
module.exports = async function setup() {
  const worker = path.join(__dirname, '..', 'dist', 'worker', 'main.js');
  if (!fs.existsSync(worker)) {
    throw new Error(`${worker} is missing: run \`npm test\`, or \`npm run build\` and then jest again.`);
  }
};
