import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { addonFor, listAddons, prebuildsDirectory, prebuiltName } from '../../../ts/install/addons';
import { temporaryDirectory } from './fake_libtorch';

let root: string;
beforeEach(() => {
  root = temporaryDirectory();
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function prebuilt(...names: string[]): void {
  mkdirSync(prebuildsDirectory(root), { recursive: true });
  for (const name of names) writeFileSync(path.join(prebuildsDirectory(root), name), '');
}

function localBuild(version: string): void {
  const release = path.join(root, 'build', 'Release');
  mkdirSync(release, { recursive: true });
  writeFileSync(path.join(release, 'troupe.node'), '');
  const record = { stamp: '', libtorch: { dir: '/torch', version, variant: 'cpu' }, cuda: false };
  writeFileSync(path.join(release, 'troupe.json'), JSON.stringify(record));
}

test('no build and no prebuilds is an empty list', () => {
  expect(listAddons(root)).toEqual([]);
});

test('prebuilt addons are chosen by LibTorch minor version and variant', () => {
  prebuilt(
    `${prebuiltName('2.13', 'cpu')}.node`,
    `${prebuiltName('2.13', 'cu130')}.node`,
    `${prebuiltName('2.14', 'cpu')}.node`,
  );
  prebuilt('README.md', 'troupe.node', 'troupe.libtorch2.13.rocm.node');
  const addons = listAddons(root);
  expect(addons).toHaveLength(3);
  const chosen = (minor: string, variant: string) => {
    const addon = addonFor(addons, { minor, variant });
    return addon && path.basename(addon.file);
  };
  expect(chosen('2.13', 'cpu')).toBe('troupe.libtorch2.13.cpu.node');
  expect(chosen('2.13', 'cu130')).toBe('troupe.libtorch2.13.cu130.node');
  expect(chosen('2.13', 'cu128')).toBe('troupe.libtorch2.13.cpu.node');
  expect(chosen('2.14', 'cu130')).toBe('troupe.libtorch2.14.cpu.node');
  expect(chosen('2.12', 'cpu')).toBeNull();
});

test('a local build wins over a prebuilt addon of the same LibTorch, not over that of another', () => {
  prebuilt('troupe.libtorch2.13.cpu.node', 'troupe.libtorch2.14.cpu.node');
  localBuild('2.13.0');
  const addons = listAddons(root);
  expect(addonFor(addons, { minor: '2.13', variant: 'cpu' })).toMatchObject({
    kind: 'local',
    libtorchDir: '/torch',
  });
  expect(addonFor(addons, { minor: '2.14', variant: 'cpu' })).toMatchObject({ kind: 'prebuilt' });
});

test('an addon without a record of its LibTorch is never chosen', () => {
  localBuild('2.13.0');
  rmSync(path.join(root, 'build', 'Release', 'troupe.json'));
  const addons = listAddons(root);
  expect(addons).toMatchObject([{ minor: null }]);
  expect(addonFor(addons, { minor: '2.13', variant: 'cpu' })).toBeNull();
});
