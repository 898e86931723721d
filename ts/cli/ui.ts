import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Argv } from 'yargs';
import { TroupeError } from '../errors';
import type { UiServer } from '../ui/server';
import { UsageError } from './report';
import { askedToEnd } from './requests';

interface UiCommandOptions {
  /** null: the first of the usual ones that is there. */
  directory: string | null;
  host: string;
  /** null: the usual one, or any where that is taken. */
  port: number | null;
  /** null: a new one. */
  token: string | null;
  /** Whether one is asked for. */
  auth: boolean;
}

const USUAL_PORT = 8420;
/** Where the example and the default configuration put runs. */
const USUAL_DIRECTORIES = ['runs', 'checkpoints', '.'];

/** `troupe ui`. Returns the exit code. */
async function uiCommand(options: UiCommandOptions): Promise<number> {
  const directory = resolve(options.directory ?? USUAL_DIRECTORIES.find((name) => existsSync(name)) ?? '.');
  const server = await open(directory, options);
  const asked = askedToEnd();
  process.stdout.write(`runs of ${directory} at ${server.address}\nCtrl-C ends it\n`);
  await asked;
  await server.close();
  return 0;
}

async function open(directory: string, { host, port, token, auth }: UiCommandOptions): Promise<UiServer> {
  const { UiServer } = require('../ui/server') as typeof import('../ui/server');
  const given = auth ? (token === null ? {} : { token }) : { token: null };
  const at = (chosen: number): Promise<UiServer> =>
    UiServer.open({ directory, host, port: chosen, ...given });
  if (port !== null) return await at(port);
  try {
    return await at(USUAL_PORT);
  } catch (error) {
    if (error instanceof TroupeError && error.message.includes('is in use')) return await at(0);
    throw error;
  }
}

export const withUi = (y: Argv) =>
  y
    .positional('directory', {
      type: 'string',
      describe: 'Directory with runs, at any depth; default: runs, or checkpoints, or this one',
    })
    .option('host', {
      type: 'string',
      requiresArg: true,
      default: '127.0.0.1',
      describe: 'Address to listen on',
    })
    .option('port', {
      type: 'number',
      requiresArg: true,
      describe: '0: any free one; default: 8420, or any free one where that is in use',
    })
    .option('token', {
      type: 'string',
      requiresArg: true,
      describe: 'What the address holds; default: a new one',
    })
    .option('auth', {
      type: 'boolean',
      default: true,
      describe: '--no-auth: without a token, on this machine only',
    });

function uiOptions(a: Awaited<ReturnType<typeof withUi>['argv']>): UiCommandOptions {
  const { port, token } = a;
  if (port !== undefined && !(Number.isInteger(port) && port >= 0 && port <= 65535))
    throw new UsageError(`ui: --port: expected an integer from 0 to 65535, got ${port}`);
  if (token !== undefined && !/^[\w.~-]{8,200}$/.test(token))
    throw new UsageError('ui: --token: expected 8 to 200 letters, digits, and any of . _ ~ -');
  return {
    directory: a.directory ?? null,
    host: a.host,
    port: port ?? null,
    token: token ?? null,
    auth: a.auth,
  };
}

/** @throws UsageError naming the option that is out of range */
export function uiTask(a: Awaited<ReturnType<typeof withUi>['argv']>): () => Promise<number> {
  const options = uiOptions(a);
  return () => uiCommand(options);
}
