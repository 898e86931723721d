import { chosenDevice } from '../../../ts/trainer/device';
import { runConfig, runDirectory } from '../../helpers/fake_run';

// What the addon on disk is built for; the addon of this machine has no CUDA.
let variant = 'cu130';
jest.mock('../../../ts/native/loader', () => ({ locateAddon: () => ({ variant }) }));

const launcher = (visible: string) => ({ env: { CUDA_VISIBLE_DEVICES: visible } });

test.each([
  ['0,1', 'cu130', 'cuda', 'device: cuda, because 2 GPUs are visible (trainer.device=auto)'],
  ['', 'cu130', 'cpu', 'device: cpu, because no GPU is visible (trainer.device=auto)'],
  ['0', 'cpu', 'cpu', /^device: cpu, because 1 GPU is visible, but the native addon is built without CUDA/],
])('auto, GPUs "%s", an addon for %s: %s', (visible, built, device, says) => {
  variant = built;
  const said: string[] = [];
  const config = runConfig(runDirectory(), []);
  expect(config.trainer.device).toBe('auto');
  expect(chosenDevice(config, launcher(visible), (line) => void said.push(line))).toBe(device);
  expect(said).toEqual([says instanceof RegExp ? expect.stringMatching(says) : says]);
});

test.each(['cpu', 'cuda'])('%s is taken as it is, without a word', (device) => {
  const said: string[] = [];
  const config = runConfig(runDirectory(), [`trainer.device=${device}`]);
  expect(chosenDevice(config, launcher('0,1'), (line) => void said.push(line))).toBe(device);
  expect(said).toEqual([]);
});
