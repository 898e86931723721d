// The program of the server that a run starts (dist/ui/main.js DIRECTORY HOST PORT PID): nothing but the server, so that it costs the run little.
import { reasonOf } from '../base/text';
import { UiServer } from './server';
import { serveWhileWanted } from './while_wanted';

async function main([directory = '', host = '', port = '0', pid = '0']: readonly string[]): Promise<void> {
  const server = await UiServer.open({ directory, host, port: Number(port) });
  await serveWhileWanted(server, { directory, pid: Number(pid) });
  await server.close();
}

main(process.argv.slice(2)).catch((error: unknown) => {
  process.send?.({ error: reasonOf(error) });
  process.exitCode = 1;
});
