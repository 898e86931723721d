import { join, resolve } from 'node:path';
import { thrownAt } from '../../../ts/base/thrown_at';

const ROOT = resolve(__dirname, '../../..');
const CALLER = join(ROOT, 'dist', 'agent', 'run_agent.js');

const withStack = (...lines: string[]): Error => Object.assign(new Error(), { stack: lines.join('\n') });

test.each([
  ['a function', '    at score (/home/me/reward.cjs:3:7)', ', at /home/me/reward.cjs:3'],
  ['the top of a module', '    at file:///home/me/my%20tools.mjs:12:1', ', at /home/me/my tools.mjs:12'],
  ['an async function', '    at async ask (file:///home/me/a.mjs:7:11)', ', at /home/me/a.mjs:7'],
  ['an async call without a name', '    at async file:///home/me/a.mjs:7:11', ', at /home/me/a.mjs:7'],
  ['Node', '    at readFileSync (node:fs:448:20)', ''],
  ['a package', '    at parse (/home/me/node_modules/zod/index.cjs:1:2)', ''],
  ['one of our modules', `    at f (${join(ROOT, 'dist', 'cli.js')}:3:4)`, ''],
  ['one of our sources', `    at f (${join(ROOT, 'ts', 'cli.ts')}:3:4)`, ''],
])('%s', (_, frame, place) => {
  expect(thrownAt(withStack('Error: x', frame))).toBe(place);
});

test('the innermost call of the user, of those below our call', () => {
  const inner = '    at score (/home/me/reward.cjs:3:7)';
  const ours = `    at run (${CALLER}:3:4)`;
  const outer = '    at train (/home/me/train.cjs:9:1)';
  expect(thrownAt(withStack('Error: x', '    at JSON.parse (<anonymous>)', inner, outer))).toBe(
    ', at /home/me/reward.cjs:3',
  );
  expect(thrownAt(withStack('Error: x', inner, ours, outer), CALLER)).toBe(', at /home/me/reward.cjs:3');
  expect(thrownAt(withStack('Error: x', ours, outer), CALLER)).toBe('');
  expect(thrownAt(withStack('Error: x', ours, outer))).toBe(', at /home/me/train.cjs:9');
});

test('a file that could not be parsed', () => {
  const error = withStack(
    '/home/me/a.cjs:4',
    '  1 +;',
    '',
    "SyntaxError: Unexpected token ';'",
    '    at f (/b.cjs:1:1)',
  );
  expect(thrownAt(error)).toBe(', at /home/me/a.cjs:4');
});

test('what has no stack that can be read', () => {
  const hostile = {
    get stack(): string {
      throw new Error('no');
    },
  };
  for (const thrown of [undefined, null, 'text', 5, {}, { stack: 5 }, hostile])
    expect(thrownAt(thrown)).toBe('');
});
