import path from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import {
  type Device,
  defaultDevice,
  deviceOfWorkers,
  machineOf,
} from '../../../ts/controller/default_device';
import type { WorkerGroupOptions } from '../../../ts/controller/group_options';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { FakeGroup } from '../actor/fake_group';

// What the addon on disk is built for; the addon of this machine has no CUDA.
let variant = 'cpu';
jest.mock('../../../ts/native/loader', () => ({ locateAddon: () => ({ variant }) }));

const machine = (gpus: number | null, addon: string) => ({ gpus: () => gpus, addonVariant: () => addon });
const models = path.join(__dirname, '../../fixtures/conformance/models');
const model = path.join(models, 'llama_gqa/actor');

describe('the default', () => {
  test.each<[number | null, string, Device, string]>([
    [8, 'cu130', 'cuda', '8 GPUs are visible'],
    [1, 'cu130', 'cuda', '1 GPU is visible'],
    [1, 'cpu', 'cpu', '1 GPU is visible, but the native addon is built without CUDA: see npx troupe doctor'],
    [0, 'cu130', 'cpu', 'no GPU is visible'],
    [null, 'cu130', 'cpu', 'no GPU is visible'],
  ])('%s GPUs, an addon for %s: %s', (gpus, addon, device, reason) => {
    expect(defaultDevice(machine(gpus, addon))).toEqual({ device, reason });
  });

  test('without a GPU the addon is not looked for', () => {
    const lost = (): string => {
      throw new Error('there is none');
    };
    expect(defaultDevice({ gpus: () => 0, addonVariant: lost }).device).toBe('cpu');
  });

  test('a launcher of its own has machines that are not known', () => {
    const launcher = {
      start: () => {
        throw new Error('not started here');
      },
    };
    expect(defaultDevice(machineOf(launcher)).device).toBe('cpu');
    expect(deviceOfWorkers('options', 'cuda', 64, machineOf(launcher))).toBe('cuda');
  });

  test('GPUs are those of the environment that the workers get', () => {
    expect(machineOf({ env: { CUDA_VISIBLE_DEVICES: '4,5' } })?.gpus()).toBe(2);
  });
});

describe('engines with workers of their own', () => {
  const visible = process.env['CUDA_VISIBLE_DEVICES'];
  const launched: WorkerGroupOptions[] = [];
  beforeEach(() => {
    launched.length = 0;
    variant = 'cu130';
    process.env['CUDA_VISIBLE_DEVICES'] = '0,1';
    jest.spyOn(WorkerGroup, 'launch').mockImplementation(async (options) => {
      launched.push(options);
      return new FakeGroup({}, options.worldSize, options.device).asGroup();
    });
  });
  afterEach(() => {
    jest.restoreAllMocks();
    if (visible === undefined) delete process.env['CUDA_VISIBLE_DEVICES'];
    else process.env['CUDA_VISIBLE_DEVICES'] = visible;
  });

  test('workers are started for the GPUs that the engine takes', async () => {
    const actor = await Actor.create({ model, worldSize: 2 });
    expect(launched).toMatchObject([{ worldSize: 2, device: 'cuda' }]);
    expect(actor.engine.options).toMatchObject({ device: 'cuda', dtype: 'bfloat16', maxTokens: 16384 });
  });

  test('cpu where the addon has no CUDA, or is asked for', async () => {
    await Actor.create({ model, worldSize: 8, device: 'cpu' });
    variant = 'cpu';
    const actor = await Actor.create({ model, worldSize: 8 });
    expect(launched).toMatchObject([{ device: 'cpu' }, { device: 'cpu' }]);
    expect(actor.engine.options.device).toBe('cpu');
  });

  test.each([{}, { device: 'cuda' as const }])('fewer GPUs than workers: refused, %j', async (more) => {
    await expect(Actor.create({ model, worldSize: 3, ...more })).rejects.toThrow(
      /worldSize 3: expected one GPU per worker, but 2 are visible here/,
    );
    expect(launched).toEqual([]);
  });
});

test('in a given group, the device of its workers, and no other', async () => {
  const group = new FakeGroup({}, 2, 'cuda').asGroup();
  const actor = await Actor.create({ model, group });
  expect(actor.engine.options.device).toBe('cuda');
  await expect(Actor.create({ model, group, name: 'ref', device: 'cpu' })).rejects.toThrow(
    /device 'cpu': the workers of the given group were started for 'cuda'/,
  );
});
