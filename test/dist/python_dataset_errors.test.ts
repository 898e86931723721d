import { type Asked, CLASSES, closeSpools, made, rowsOf, write } from '../helpers/python_dataset';

// What people are told of data set classes in Python that fail, or cannot be used.

afterEach(closeSpools);

describe('what is wrong is told', () => {
  it.each([
    [
      'a number',
      '{"b": [1, float("nan")]}',
      /training row 1: extra_info\['b'\]\[1\] is nan, which JSON has no word for: expected a finite number, or None$/,
    ],
    [
      'a type',
      '{"a": datetime.date(2020, 1, 1)}',
      /training row 1: extra_info\['a'\] is of the type date, which JSON has no word for: expected text, numbers/,
    ],
    ['bytes', '{"a": b"x"}', /extra_info\['a'\] is of the type bytes/],
    ['a set', '{1}', /extra_info is of the type set/],
    ['a key', '{"a": {3: 4}}', /extra_info\['a'\] has the key 3: expected texts as keys/],
    ['a circle', '(lambda d: d.update(d=d) or d)({})', /extra_info is nested more than 100 times/],
  ])('that JSON has no word for: %s', async (_, value, expected) => {
    const failed = rowsOf(['row()', `row(extra_info=${value})`]);
    await expect(failed).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
    await expect(failed).rejects.toThrow(`[data] data.custom_cls: Given of ${CLASSES}: training row 1`);
  });

  it.each([
    ['no dict', '[]', /row 0: expected a dict, got list/],
    [
      'no prompt',
      '{"a": 1}',
      /row 0: there is neither 'raw_prompt' nor 'prompt'; its keys are a: data\.prompt_key says which one it is$/,
    ],
    [
      'a prompt that is none',
      '{"raw_prompt": None, "a": 1}',
      /row 0: 'raw_prompt' is None, and there is no 'prompt'; its keys are raw_prompt, a: data\.prompt_key says which/,
    ],
    [
      'no source',
      '{"prompt": "", "b": 1}',
      /row 0: there is no 'data_source'; its keys are prompt, b: data\.reward_fn_key says which/,
    ],
    [
      'tokens',
      'row(input_ids=[1, 2])',
      /has its prompt as token ids \(input_ids\), and no raw_prompt: prompts are tokenized by the trainer/,
    ],
    [
      'a video',
      'row(raw_prompt=[{"role": "user", "content": [{"type": "video", "video": "v"}]}])',
      /raw_prompt\[0\]\['content'\]\[0\] is of the type video/,
    ],
    ['videos', 'row(videos=["v"])', /'videos' is not empty/],
    ['older images', 'row(multi_modal_data={"image": [1]})', /multi_modal_data is of older versions/],
    ['no image', 'row(images=[3])', /images\[0\] is no image: expected bytes/],
    [
      'an exception',
      'row(a=[][1])',
      /row 0: IndexError: list index out of range, at <string>:1 in <module>: , from .*python_dataset\.py:\d+ in __getitem__: return eval/,
    ],
    ['an exit', 'sys.exit(3)', /row 0: SystemExit: 3, at .*, from .*python_dataset\.py:\d+ in __getitem__/],
    [
      'the tokenizer',
      'self.tokenizer.encode("a")',
      /row 0: ImportError: the class asks for the tokenizer of .*, which transformers reads in .*python.*: (ModuleNotFoundError: No module named 'transformers'|OSError|ValueError)/,
    ],
  ])('of a row: %s', async (_, value, expected) => {
    await expect(rowsOf([value])).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
  });

  it.each<[string, Asked, RegExp]>([
    [
      'an interpreter',
      { python: '/nowhere/python' },
      /^data\.custom_cls\.python: could not start \/nowhere\/python/,
    ],
    [
      'a program that is no Python',
      { python: 'true' },
      /^data\.custom_cls\.python: true ended before it began: expected Python 3\.8/,
    ],
    [
      'a class',
      { name: 'Missing' },
      /^data\.custom_cls\.name: .*python_dataset\.py has no class 'Missing'; it has: OtherTool, Lines, /,
    ],
    ['a function', { name: 'not_a_class' }, /has no class 'not_a_class'/],
    [
      'a package',
      { path: write('bad.py', 'import no_such_package\n') },
      /^data\.custom_cls\.path: .*python.* could not load .*bad\.py: ModuleNotFoundError: No module named 'no_such_package', at .*bad\.py:1.*\(data\.custom_cls\.python\)/,
    ],
    [
      'an exit',
      { path: write('exits.py', 'raise SystemExit(0)\n') },
      /^data\.custom_cls\.path: .* could not load .*exits\.py: SystemExit: 0/,
    ],
    ['syntax', { path: write('syntax.py', 'class A(:\n') }, /could not load .*syntax\.py: SyntaxError: /],
    [
      'a stream',
      { name: 'Stream' },
      /^data\.custom_cls\.name: Stream has no __len__: expected rows by number/,
    ],
    [
      'data that change',
      { name: 'Changing', config: { rows: [] } },
      /^data\.custom_cls\.name: Changing has on_batch_end, which would change the data while the run goes on: .*: name a class without it/,
    ],
  ])('of the configuration: %s', async (_, asked, expected) => {
    await expect(made(asked)).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringMatching(expected),
    });
  });

  it.each<[string, Asked, RegExp]>([
    [
      'its making',
      { name: 'Broken' },
      /while the training set was made: FileNotFoundError: .*\/nowhere\/at\/all.*, at .*python_dataset\.py:\d+ in __init__/,
    ],
    [
      'its files',
      { name: 'Lines', files: ['/nowhere.jsonl'] },
      /while the training set was made: FileNotFoundError: .*in _read_files_and_tokenize/,
    ],
    [
      'what verl has',
      { name: 'OtherTool' },
      /ImportError: verl\.tools\.sandbox_fusion_tools\.SandboxFusionTool is verl's, and verl is not installed: install it in .*python/,
    ],
    ['no rows', { config: { rows: [] } }, /^\[data\] Given, training: the data set is empty$/],
    [
      'the end of its process',
      { config: { rows: ['os._exit(0)'] } },
      /its process ended with exit code 0 while training row 0 of 1 was made, or soon after$/,
    ],
    [
      'its death',
      { config: { rows: ['time.sleep(1) or os.kill(os.getpid(), 9)'] } },
      /its process ended with SIGKILL while training row 0 of 1 was made/,
    ],
    [
      'its sockets',
      { config: { rows: ['os.write(4, b"x\\n") and time.sleep(60)'] } },
      /it wrote to the socket of its process/,
    ],
    [
      'its file',
      { config: { rows: ['os.write(5, b"x\\n") and row()'] } },
      /expected \d+ bytes of training rows, found \d+: it wrote to their file/,
    ],
    [
      'a row that does not come',
      { timeout: 1, config: { rows: ['row()', 'time.sleep(100)'] } },
      /nothing came within data\.custom_cls\.timeout, 1 s, while training row 1 of 2 was made, at <string>:1 in <module>.*, from .*python_dataset\.py:\d+ in __getitem__/,
    ],
    [
      'a module that does not load',
      { timeout: 1, path: write('slow.py', 'import time\ntime.sleep(100)\n') },
      /nothing came within .* 1 s, while the module was loaded, at .*slow\.py:2 in <module>: time\.sleep/,
    ],
    [
      'Python that does not go on',
      { timeout: 1, name: 'Backtracking', config: { rows: ['0'] } },
      /nothing came within data\.custom_cls\.timeout, 1 s, while .*, and Python itself did not go on/,
    ],
  ])('%s', async (_, asked, expected) => {
    await expect(made(asked)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
  });
});
