import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { loadConfig, loadSftConfig, type ResolvedConfig } from '../../../ts/config/config';
import { decideImages } from '../../../ts/roles/images_of_data';
import {
  actorSettings,
  criticSettings,
  referenceSettings,
  rolloutSettings,
} from '../../../ts/roles/role_settings';
import { CONFORMANCE } from '../../helpers/conformance';
import { VISION_MODEL, visionModel } from '../../helpers/vision_model';
import { writeConfig } from '../config/write_config';
import { rlRow, writeLines } from '../data/fake_tokenizer';

const directory = mkdtempSync(join(tmpdir(), 'troupe-images-of-data-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const QWEN35 = visionModel('qwen3_5').options.model;
const config = (...overrides: string[]): ResolvedConfig =>
  loadConfig(writeConfig(), [`actor_rollout_ref.model.path=${QWEN35}`, ...overrides]);
const rows = (...more: object[]): string => writeLines(more.map((own) => ({ ...rlRow('a'), ...own })));

function parquet(name: string, columns: Record<string, string[]>): string {
  const columnData = Object.entries(columns).map(([column, data]) => ({
    name: column,
    data,
    type: 'STRING' as const,
  }));
  writeFileSync(join(directory, name), Buffer.from(parquetWriteBuffer({ columnData })));
  return join(directory, name);
}

async function decided(...overrides: string[]): Promise<{ reads: boolean | null; said: string[] }> {
  const said: string[] = [];
  const made = await decideImages(config(...overrides), (line) => said.push(line));
  return { reads: made.actor_rollout_ref.model.read_images, said };
}

test.each([
  ['a row with images, whichever it is', () => rows({}, { images: ['a.png'] }), true],
  ['rows without any', () => rows({}, { images: [] }, { images: null }), false],
  ['a parquet file with the column', () => parquet('with.parquet', { prompt: ['a'], images: ['b'] }), true],
  ['a parquet file without it', () => parquet('without.parquet', { prompt: ['a'] }), false],
  ['a file that is not there', () => join(directory, 'none.jsonl'), false],
])('Qwen3.5 is read with its tower where the data have images: %s', async (_, file, expected) => {
  const { reads, said } = await decided(`data.train_files=[${file()}]`);
  expect(reads).toBe(expected);
  expect(said).toHaveLength(1);
  expect(said[0]).toMatch(expected ? /the tower is read, too$/ : /the language model alone is read$/);
});

test('validation data and another column count as well', async () => {
  const [train, validation] = [rows({}), rows({ pictures: ['a.png'] })];
  const files = [`data.train_files=[${train}]`, `data.val_files=[${validation}]`];
  expect((await decided(...files)).reads).toBe(false);
  expect((await decided(...files, 'data.image_key=pictures')).reads).toBe(true);
});

test('what the configuration says holds, whatever the data have', async () => {
  const [text, images] = [rows({}), rows({ images: ['a.png'] })];
  const key = 'actor_rollout_ref.model.read_images';
  expect(await decided(`data.train_files=[${text}]`, `${key}=true`)).toEqual({ reads: true, said: [] });
  expect(await decided(`data.train_files=[${images}]`, `${key}=false`)).toEqual({ reads: false, said: [] });
});

test('every role of the policy follows it, and no other', async () => {
  const made = await decideImages(config(`data.train_files=[${rows({ images: ['a.png'] })}]`));
  expect(Object.isFrozen(made.actor_rollout_ref.model)).toBe(true);
  const roles = [actorSettings(made), referenceSettings(made), rolloutSettings(made), criticSettings(made)];
  expect(roles.map((role) => role?.readsImages)).toEqual([true, true, true, false]);
});

test('fine-tuning likewise', async () => {
  const made = loadSftConfig(
    writeConfig(`data: { train_files: ${rows({ images: ['a.png'] })} }\nmodel: { path: ${QWEN35} }\n`),
  );
  expect((await decideImages(made)).model.read_images).toBe(true);
});

test.each([
  [
    'a model of text',
    join(CONFORMANCE, 'models', 'llama_gqa', 'actor'),
    'true',
    /reads text alone: expected false/,
  ],
  ['Qwen3-VL', VISION_MODEL, 'false', /is read with its tower always: expected true/],
  [
    'a mixture of Qwen3-VL',
    visionModel('qwen3_vl_moe').options.model,
    'false',
    /is read with its tower always: expected true/,
  ],
])('%s cannot be read otherwise', async (_, model, value, message) => {
  const asked = [`actor_rollout_ref.model.path=${model}`, `actor_rollout_ref.model.read_images=${value}`];
  await expect(decideImages(config(...asked))).rejects.toThrow(message);
  // Nor does anything else about it change.
  const free = config(`actor_rollout_ref.model.path=${model}`);
  expect(await decideImages(free)).toBe(free);
});

test('a directory without config.json is left to what loads it', async () => {
  mkdirSync(join(directory, 'empty'));
  const free = config(`actor_rollout_ref.model.path=${join(directory, 'empty')}`);
  expect(await decideImages(free)).toBe(free);
});
