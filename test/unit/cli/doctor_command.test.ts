import { runDoctor } from '../../../ts/cli/doctor';
import { doctorTask } from '../../../ts/cli/doctor_command';
import { writeConfig } from '../config/write_config';

jest.mock('../../../ts/cli/doctor', () => ({
  runDoctor: jest.fn(({ further }: { further?: () => Promise<unknown> } = {}) => further?.().then(() => 0)),
}));

beforeEach(() => jest.mocked(runDoctor).mockClear());

const given = (config: string) => ({ config }) as Parameters<typeof doctorTask>[0];

describe('a configuration that cannot be read is told before the machine is looked at', () => {
  it.each([
    ['a file that is not there', () => '/nonexistent/run.yaml', [], /\/nonexistent\/run\.yaml/],
    ['a malformed one', () => writeConfig('trainer: ['), [], /run\.yaml:1:\d+: not valid YAML/],
    ['a wrong value', writeConfig, ['trainer.nnodes=x'], /trainer\.nnodes: expected an integer/],
    ['hosts that nothing reaches', writeConfig, ['trainer.nnodes=2'], /set trainer\.launcher\.type/],
  ])('%s', async (_, file, overrides, message) => {
    await expect(async () => doctorTask(given(file()), overrides)()).rejects.toThrow(message);
    expect(runDoctor).not.toHaveBeenCalled();
  });
});

test('one that can be read is looked at after the machine', async () => {
  await doctorTask(given(writeConfig()), [])();
  expect(runDoctor).toHaveBeenCalledTimes(1);
});
