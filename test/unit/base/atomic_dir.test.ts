import fs, {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { asTroupeError, writeDirectory, writeSmallFile } from '../../../ts/base/atomic_dir';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-atomic-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const fill = (text: string) => async (temporary: string) =>
  writeFileSync(path.join(temporary, 'config.json'), text);

test('writes, and replaces an earlier save', async () => {
  const target = path.join(dir, 'deep', 'model');
  await writeDirectory(target, fill('one'));
  await writeDirectory(target, fill('two'));
  expect(readFileSync(path.join(target, 'config.json'), 'utf8')).toBe('two');
  expect(readdirSync(path.dirname(target))).toEqual(['model']);
});

test('inside a directory that is being written it writes in place, and every file and directory is synced once', async () => {
  const fsync = jest.spyOn(fs, 'fsyncSync');
  const rename = jest.spyOn(fs, 'renameSync');
  await writeDirectory(path.join(dir, 'checkpoint'), async (outer) => {
    writeSmallFile(path.join(outer, 'engine.json'), '{}');
    await writeDirectory(path.join(outer, 'actor'), async (inner) => {
      expect(inner).toBe(path.join(outer, 'actor'));
      writeSmallFile(path.join(inner, 'config.json'), '{}');
    });
    expect(fsync).not.toHaveBeenCalled();
  });
  // engine.json, config.json, actor, checkpoint, and the directory that it is in
  expect(fsync).toHaveBeenCalledTimes(5);
  expect(rename).toHaveBeenCalledTimes(1);
  expect(readdirSync(dir)).toEqual(['checkpoint']);
  jest.restoreAllMocks();
});

test('what fails inside a directory that is being written leaves nothing there', async () => {
  await writeDirectory(path.join(dir, 'checkpoint'), async (outer) => {
    writeSmallFile(path.join(outer, 'engine.json'), '{}');
    const inner = writeDirectory(path.join(outer, 'actor'), async (at) => {
      writeSmallFile(path.join(at, 'config.json'), '{}');
      throw new Error('no luck');
    });
    await expect(inner).rejects.toMatchObject({ code: 'IO' });
  });
  expect(readdirSync(path.join(dir, 'checkpoint'))).toEqual(['engine.json']);
});

test('where no directory can be made it says so', async () => {
  const nowhere = '/proc/nowhere/deep/model';
  await expect(writeDirectory(nowhere, fill('one'))).rejects.toMatchObject({
    code: 'IO',
    message: expect.stringMatching(
      /cannot write \/proc\/nowhere\/deep\/model: ENOENT.*mkdir '\/proc\/nowhere'/,
    ),
  });
  writeFileSync(path.join(dir, 'file'), '');
  await expect(writeDirectory(path.join(dir, 'file', 'model'), fill('one'))).rejects.toMatchObject({
    code: 'IO',
    message: expect.stringMatching(/expected a directory, but .*\/file is a file/),
  });
});

test.each(['adapter_config.json', 'engine.json'])('replaces a save that is known by its %s', async (mark) => {
  const target = path.join(dir, 'adapter');
  for (const text of ['one', 'two'])
    await writeDirectory(target, async (temporary) => {
      mkdirSync(path.join(temporary, 'lora_adapter'));
      writeFileSync(path.join(temporary, mark), text);
    });
  expect(readFileSync(path.join(target, mark), 'utf8')).toBe('two');
});

test('replaces a model with the code of its class and templates of its own, and no other code', async () => {
  const target = path.join(dir, 'model');
  const save = (): Promise<void> =>
    writeDirectory(target, async (temporary) => {
      const config = '{"time_step_limit": [0.0, Infinity], "auto_map": {"AutoConfig": "configuration_x.X"}}';
      writeFileSync(path.join(temporary, 'config.json'), config);
      writeFileSync(path.join(temporary, 'configuration_x.py'), '');
      mkdirSync(path.join(temporary, 'additional_chat_templates'));
    });
  await save();
  await save();
  writeFileSync(path.join(target, 'train.py'), '');
  await expect(save()).rejects.toThrow(/holds 'train.py', which a save would delete/);
});

test('a failure leaves what was there and nothing else', async () => {
  const target = path.join(dir, 'model');
  await writeDirectory(target, fill('one'));
  const full = Object.assign(new Error('no space'), { code: 'ENOSPC' });
  const failing = writeDirectory(target, async (temporary) => {
    writeFileSync(path.join(temporary, 'config.json'), 'half');
    throw full;
  });
  await expect(failing).rejects.toMatchObject({ code: 'NO_SPACE' });
  expect(readFileSync(path.join(target, 'config.json'), 'utf8')).toBe('one');
  expect(readdirSync(dir)).toEqual(['model']);
});

test.each(['nowhere', 'empty', 'full'])(
  'a link to a directory that is %s is replaced, what it leads to stays',
  async (name) => {
    const elsewhere = path.join(dir, name);
    if (name !== 'nowhere') mkdirSync(elsewhere);
    if (name === 'full') writeFileSync(path.join(elsewhere, 'config.json'), 'old');
    const target = path.join(dir, 'model');
    symlinkSync(elsewhere, target);
    await writeDirectory(target, fill('new'));
    expect(lstatSync(target).isDirectory()).toBe(true);
    expect(readFileSync(path.join(target, 'config.json'), 'utf8')).toBe('new');
    expect(readdirSync(dir).sort()).toEqual(name === 'nowhere' ? ['model'] : [name, 'model']);
    if (name === 'full') expect(readFileSync(path.join(elsewhere, 'config.json'), 'utf8')).toBe('old');
  },
);

test('never deletes files that are not its own', async () => {
  writeFileSync(path.join(dir, 'data.json'), '');
  await expect(writeDirectory(dir, fill('x'))).rejects.toThrow(
    /holds 'data.json', which a save would delete/,
  );
  writeFileSync(path.join(dir, 'config.json'), '');
  mkdirSync(path.join(dir, 'notes'));
  await expect(writeDirectory(dir, fill('x'))).rejects.toThrow(/holds 'notes'/);
  await expect(writeDirectory(path.join(dir, 'config.json'), fill('x'))).rejects.toThrow(/it is a file/);
  await expect(writeDirectory(path.join(dir, 'config.json', 'x'), fill('x'))).rejects.toMatchObject({
    code: 'IO',
  });
});

test('a directory that may not be written to', () => {
  const denied = asTroupeError(Object.assign(new Error('denied'), { code: 'EACCES' }), 'write /x');
  expect(denied.code).toBe('IO');
  expect(denied.message).toMatch(/cannot write \/x: denied; choose a directory/);
  // Of what cannot be read another place to write to is no advice.
  expect(asTroupeError(denied.cause, 'read /x').message).toBe('cannot read /x: denied');
});
