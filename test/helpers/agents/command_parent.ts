// node -r register_ts.js command_parent.ts COMMAND...: a process that plays one trajectory of a program, as a trainer does, and says what
// went wrong. SIGINT ends it at once. With STARVED=1 it has no file descriptor left.
import { openSync } from 'node:fs';
import type { AgentContext, AgentTask } from '../../../ts/agent/define';
import { commandAgent } from '../../../ts/agent/loops/command';

process.on('SIGINT', () => process.exit(130));
const url = 'http://127.0.0.1:1';
const context = {
  endpoint: async () => ({ openaiBaseUrl: url, anthropicBaseUrl: url, apiKey: '' }),
  signal: new AbortController().signal,
  note: () => undefined,
};

async function play(): Promise<void> {
  const agent = commandAgent(process.argv.slice(2));
  try {
    while (process.env['STARVED']) openSync('/dev/null', 'r');
  } catch {
    // It has them all.
  }
  await agent.run({ prompt: 'x' } as AgentTask, context as unknown as AgentContext);
}

play().catch((error: Error) => console.log(error.message));
