import { endlessNote } from '../../../ts/data/end_tokens';

test('a model whose responses nothing ends is told of, with the files that could say so', () => {
  expect(endlessNote([1], '/m')).toBeNull();
  expect(endlessNote([], '/m')).toMatch(
    /nothing names a token that ends a response.*eos_token_id in generation_config.json or config.json of \/m.*eos_token in tokenizer_config.json/,
  );
});
