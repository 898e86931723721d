// node -r register_ts.js program.ts DIRECTORY FIRST: does the cases from FIRST on, one JSON line before each and one after.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { isForeseen } from '../../../ts/cli/report';
import { argumentCases } from './arguments';
import type { HostileCase } from './case';
import { configCases } from './configs';
import { dataCases } from './data';
import { modelCases } from './models';
import { runCases } from './runs';

const [directory, first] = process.argv.slice(2) as [string, string];
const say = (line: object): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};

function allCases(): HostileCase[] {
  const kinds = {
    config: configCases,
    model: modelCases,
    data: dataCases,
    api: argumentCases,
    run: runCases,
  };
  return Object.entries(kinds).flatMap(([kind, cases]) => {
    const own = join(directory, `${kind}_${first}`);
    mkdirSync(own);
    return cases(own).map((one) => ({ ...one, name: `${kind}: ${one.name}` }));
  });
}

async function attempt({ run }: HostileCase): Promise<unknown> {
  try {
    await run();
    return null;
  } catch (error) {
    return error;
  }
}

async function main(): Promise<void> {
  const cases = allCases();
  say({ count: cases.length });
  for (let i = Number(first); i < cases.length; i++) {
    const one = cases[i] as HostileCase;
    say({ begin: i, name: one.name });
    const error = await attempt(one);
    const message = error instanceof Error ? error.message : String(error);
    say({
      end: i,
      refused: error !== null,
      foreseen: error !== null && isForeseen(error),
      code: (error as { code?: unknown } | null)?.code ?? null,
      missing: one.place.filter((part) => !message.includes(part)),
      length: message.length,
      message: message.slice(0, 500),
    });
  }
  process.exit(0);
}

void main();
