const fs = require('node:fs');

/** Removes the temporary directory that jest_setup.js made, and only that one. */
module.exports = async function teardown() {
  if (globalThis.troupeScratch !== undefined) {
    fs.rmSync(globalThis.troupeScratch, { recursive: true, force: true, maxRetries: 3 });
  }
};
