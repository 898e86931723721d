// A Jest reporter for scripts/jest_files.mjs: a line of JSON in the file TROUPE_JEST_PROGRESS as each test file starts and ends.
const { appendFileSync } = require('node:fs');

module.exports = class Progress {
  #file = process.env.TROUPE_JEST_PROGRESS;

  #write(line) {
    if (this.#file) appendFileSync(this.#file, `${JSON.stringify(line)}\n`);
  }

  onTestFileStart(test) {
    this.#write({ file: test.path });
  }

  onTestFileResult(test, { numPassingTests, numFailingTests, numPendingTests, testExecError }) {
    const failed = numFailingTests + (testExecError ? 1 : 0);
    this.#write({ file: test.path, passed: numPassingTests, failed, skipped: numPendingTests });
  }
};
