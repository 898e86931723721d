import { printable } from '../../../ts/base/printable';

test('what a terminal would obey is escaped, other text is not', () => {
  expect(printable('\x1b[2J\x1b]0;title\x07 \x9b31m \x7f a\r\n\tb\0')).toBe(
    '\\x1b[2J\\x1b]0;title\\x07 \\x9b31m \\x7f a\\r\\n\\tb\\x00',
  );
  expect(printable('\u202Eevil\u2066 \u2028 \uFEFF')).toBe('\\u202eevil\\u2066 \\u2028 \\ufeff');
  const fine = 'π ≤ 4, 数学, ألف, 👩‍🔬 "quoted" \\';
  expect(printable(fine)).toBe(fine);
});

test('lines are kept where they are asked for, carriage returns never', () => {
  expect(printable('a\n\tb\rc', { lines: true })).toBe('a\n\tb\\rc');
});

test('long text is cut and its length told, without half characters', () => {
  expect(printable('x'.repeat(301))).toBe(`${'x'.repeat(300)}… (301 characters)`);
  expect(printable('x'.repeat(300))).toBe('x'.repeat(300));
  expect(printable('ab👩c', { max: 3 })).toBe('ab… (5 characters)');
  expect(printable('ab\uD83D')).toBe('ab\\ud83d');
});
