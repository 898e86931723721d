// What the agent of a host reports of it.
import { availableParallelism, hostname } from 'node:os';
import { countGpus } from '../controller/gpus';
import { packageVersion } from '../install/package_root';
import { locateAddon } from '../native/loader';
import { interfaceOf, namedAddress } from './addresses';
import type { HostFacts } from './protocol';

/**
 * `from`: the address that reaches the controller; `network`: names another one, see namedAddress; null: that one.
 * @throws TroupeError INVALID_ARGUMENT for a network that this host has not
 */
export function hostFacts(from: string, network: string | null): HostFacts {
  const address = network === null ? from : namedAddress(network);
  return {
    name: process.env['SLURMD_NODENAME'] || hostname(),
    address,
    interface: interfaceOf(address),
    pid: process.pid,
    cores: availableParallelism(),
    gpus: countGpus(),
    version: packageVersion(),
    node: process.version,
    ...addonFacts(),
  };
}

function addonFacts(): Pick<HostFacts, 'addon' | 'libtorch' | 'problem'> {
  try {
    const { variant, libtorch } = locateAddon();
    return { addon: variant, libtorch: libtorch.version, problem: null };
  } catch (error) {
    return { addon: null, libtorch: null, problem: (error as Error).message };
  }
}
