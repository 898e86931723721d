// Ends a program whose own event loop never comes to a second Ctrl-C, because code that it loaded does not return.
import { spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { packageRoot } from '../install/package_root';

/**
 * Starts a process of the same group, so that the terminal sends it each Ctrl-C, too: watchdog_main.ts. It ends with this process, whose
 * end it reads on its stdin, and does not keep it alive. Returns what ends it before.
 */
export function startWatchdog(): () => void {
  const program = join(packageRoot, 'dist', 'cli', 'watchdog_main.js');
  const child = spawn(process.execPath, [program, String(process.pid)], {
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  // A machine on which it cannot be started has a program without it.
  child.on('error', () => undefined);
  child.stdin.on('error', () => undefined);
  child.unref();
  (child.stdin as Socket).unref();
  return () => child.stdin.destroy();
}
