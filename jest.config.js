// Tests import the TypeScript sources; worker processes run the compiled dist/worker/main.js.
// Packages that ship only ES modules are compiled like our own code: Jest's module loader has no require(esm).
const esmOnly = [
  'yargs',
  'yargs-parser',
  'y18n',
  'cliui',
  'string-width',
  'strip-ansi',
  'wrap-ansi',
  'ansi-regex',
]
  .concat(['ansi-styles', 'emoji-regex', 'get-east-asian-width', 'get-caller-file'])
  .concat([
    'p-limit',
    'yocto-queue',
    'hyparquet',
    'hyparquet-writer',
    'hyparquet-compressors',
    'hysnappy',
    'fzstd',
    '@huggingface/[^/]+',
  ]);

const swc = {
  jsc: { target: 'es2022', parser: { syntax: 'typescript' } },
  module: { type: 'commonjs' },
  sourceMaps: 'inline',
};

/** @type {import('jest').Config} */
module.exports = {
  testEnvironment: 'node',
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  globalSetup: '<rootDir>/test/jest_setup.js',
  globalTeardown: '<rootDir>/test/jest_teardown.js',
  transform: { '\\.(ts|mjs|js)$': ['@swc/jest', swc] },
  transformIgnorePatterns: [`/node_modules/(?!(${esmOnly.join('|')})/)`, '<rootDir>/dist/'],
  moduleFileExtensions: ['ts', 'mjs', 'js', 'json', 'node'],
  modulePathIgnorePatterns: ['<rootDir>/dist/', '<rootDir>/build', '<rootDir>/runs/', '<rootDir>/.troupe/'],
  testTimeout: 120_000,
  // Worker processes compute on several cores: one file at a time in a process, of which scripts/test.mjs runs two.
  maxWorkers: 1,
};
