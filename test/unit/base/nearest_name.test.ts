import { nearestName } from '../../../ts/base/nearest_name';

const names = ['lr', 'seed', 'params', 'optimizer', 'worldSize', 'maxNewTokens', 'topK'];

it.each([
  ['worldsize', 'worldSize'],
  ['ls', 'lr'],
  ['seeed', 'seed'],
  ['esed', 'seed'],
  ['parameters', 'params'],
  ['max_new_tokens', 'maxNewTokens'],
  ['top_k', 'topK'],
  ['par', 'params'],
  ['world', 'worldSize'],
])('%s is %s', (given, name) => {
  expect(nearestName(names, given)).toBe(name);
});

it.each(['', 'x', 'n', 'ab', 'foo', 'typo', 'optics', 'pa', 'group', 'seed'.repeat(60), 'é'])(
  '%p is near nothing',
  (given) => {
    expect(nearestName(names, given)).toBeNull();
  },
);
