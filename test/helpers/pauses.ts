import type { WorkerProcess } from '../../ts/controller/launcher';

/** Stops one process after the other for up to 20 ms, wherever it is: the others then wait for it in their collectives. */
export class Pauses {
  count = 0;
  private stopped: WorkerProcess | null = null;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly processes: readonly WorkerProcess[]) {}

  start(): void {
    this.timer = setTimeout(() => this.next(), Math.random() * 20);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.release();
  }

  private next(): void {
    this.release();
    this.stopped = this.processes[Math.floor(Math.random() * this.processes.length)] as WorkerProcess;
    process.kill(this.stopped.pid as number, 'SIGSTOP');
    this.count++;
    this.start();
  }

  private release(): void {
    if (this.stopped !== null) process.kill(this.stopped.pid as number, 'SIGCONT');
    this.stopped = null;
  }
}
