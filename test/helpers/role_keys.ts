import type { RoleSpec } from '../../ts/planner/plan';

/** Of a role that no configuration has. */
export const NO_KEYS: RoleSpec['keys'] = {
  capacity: '',
  dtype: '',
  gradientCheckpointing: '',
  activationOffload: '',
  layout: '',
  sharding: '',
  placement: '',
  reduction: '',
};
