import { exactJson, parseExactJson } from '../../../ts/base/exact_json';

test('integers keep their digits, and texts are texts whatever they hold', () => {
  const json =
    '{"big":[9007199254740993,-12345678901234567890],"small":7,"text":"\\u000012345678901234567","quoted":"\\"\\u00005"}';
  const value = parseExactJson(json);
  expect(value).toEqual({
    big: [9007199254740993n, -12345678901234567890n],
    small: 7,
    text: '\u000012345678901234567',
    quoted: '"\u00005',
  });
  expect(exactJson(value)).toBe(json);
  expect(exactJson(undefined)).toBeUndefined();
});
