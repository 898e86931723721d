import { namedAddress, outwardAddress } from '../../../ts/host/addresses';
import { shellWord } from '../../../ts/launch/agent_command';
import { perNode, slurmStarter, stepCommand } from '../../../ts/launch/slurm';
import { sshCommand } from '../../../ts/launch/ssh';

// What is started on hosts, and over which addresses they talk.

describe('addresses', () => {
  const there = [
    { interface: 'lo', address: '127.0.0.1', internal: true },
    { interface: 'eth0', address: '10.1.2.3', internal: false },
    { interface: 'ib0', address: 'fd00::7', internal: false },
  ];

  test.each([
    ['eth0', '10.1.2.3'],
    ['10.0.0.0/8', '10.1.2.3'],
    ['fd00::/8', 'fd00::7'],
    ['fd00::7', 'fd00::7'],
    ['127.0.0.1', '127.0.0.1'],
    ['127.0.0.0/8', '127.0.0.1'],
    ['0.0.0.0/0', '10.1.2.3'],
  ])('%s', (network, address) => {
    expect(namedAddress(network, there)).toBe(address);
  });

  test.each(['eth1', '192.168.0.0/16', '10.0.0.0/99', '10.0.0.0/', '10.1.2.4'])(
    '%s is none of this host',
    (network) => {
      expect(() => namedAddress(network, there)).toThrow(
        `network ${network}: expected an interface, a subnet such as 10.0.0.0/8, or an address of this host, which has lo 127.0.0.1, eth0 10.1.2.3, ib0 fd00::7`,
      );
    },
  );

  test('the first that leaves the machine', () => {
    expect(outwardAddress(there)).toBe('10.1.2.3');
    expect(outwardAddress(there.slice(0, 1))).toBe('127.0.0.1');
  });
});

test('a step of Slurm says all that a step would take from its job, and nothing secret', () => {
  const command = stepCommand('n3', 2, 16, 'ib0', { SLURM_GPUS_ON_NODE: '8' });
  expect(command[0]).toBe('srun');
  expect(command).toEqual(
    expect.arrayContaining([
      '--exact',
      '--nodes=1',
      '--ntasks=1',
      '--cpus-per-task=16',
      '--nodelist=n3',
      '--gpus-per-node=8',
    ]),
  );
  // What the node has comes before what the job was asked for.
  const both = { SLURM_GPUS_ON_NODE: '4', SLURM_GPUS_PER_NODE: 'h100:8' };
  expect(stepCommand('n3', 2, 16, null, both)).toContain('--gpus-per-node=4');
  expect(command.slice(-6)).toEqual(['host-agent', '--stdin', '--index', '2', '--network', 'ib0']);
});

test('CPUs of nodes as Slurm lists them', () => {
  expect(perNode('4(x2),8', 3)).toEqual([4, 4, 8]);
  expect(perNode('', 2)).toEqual([]);
});

test('without an allocation there is nothing to start steps in', () => {
  expect(() => slurmStarter(2, null, () => {}, {})).toThrow(/this process is in no allocation of Slurm/);
});

test.each([
  ['node1', ['--', 'node1']],
  ['me@node1:2222', ['-p', '2222', '--', 'me@node1']],
  ['[fd00::1]:22', ['-p', '22', '--', 'fd00::1']],
])('ssh to %s', (host, words) => {
  const command = sshCommand(host, 0, null);
  expect(command.slice(-words.length - 1, -1)).toEqual(words);
  expect(command.at(-1)).toMatch(/^cd \S+ && exec env .*host-agent --stdin --index 0$/);
});

test('words for a shell', () => {
  expect(["it's", 'a b', '/x/y-1', '$(x)'].map(shellWord)).toEqual([
    "'it'\\''s'",
    "'a b'",
    '/x/y-1',
    "'$(x)'",
  ]);
});
