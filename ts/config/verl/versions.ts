import table from './defaults_table.json';

/** Of verl, those whose configuration files are known; oldest first. */
export const VERL_VERSIONS: readonly string[] = table.versions;
