import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Gauge, Registry } from 'prom-client';
import type { MetricLogger, Metrics } from './logger';
import type { LoggedRun } from './run';

/**
 * The newest value of every metric at http://{host}:{port}/metrics, in the text format of Prometheus: gauges troupe_{name},
 * with the labels project, experiment, and `metric`, the name as it is elsewhere.
 */
export class PrometheusLogger implements MetricLogger {
  readonly name = 'prometheus';
  private readonly registry = new Registry();
  private readonly gauges = new Map<string, Gauge<'metric'>>();
  private readonly server: Server;
  private readonly listening: Promise<void>;

  constructor(private readonly run: LoggedRun) {
    const { project_name: project, experiment_name: experiment } = run.config.trainer;
    this.registry.setDefaultLabels({ project, experiment });
    this.server = createServer((request, response) => {
      if (request.url?.split('?')[0] !== '/metrics') {
        response.writeHead(404).end('metrics are at /metrics\n');
        return;
      }
      this.registry.metrics().then(
        (text) => response.writeHead(200, { 'content-type': this.registry.contentType }).end(text),
        () => response.writeHead(500).end(),
      );
    });
    this.listening = this.listen();
    // Whoever logs first hears of it.
    this.listening.catch(() => {});
    // A run that is over does not wait for who is watching it.
    this.server.unref();
  }

  /** Throws when the endpoint could not be opened. */
  async log(metrics: Metrics, step: number): Promise<void> {
    await this.listening;
    this.gauge('step').set({ metric: 'step' }, step);
    for (const [name, value] of Object.entries(metrics)) this.gauge(name).set({ metric: name }, value);
  }

  async close(): Promise<void> {
    await this.listening.catch(() => {});
    this.server.close();
    this.server.closeAllConnections();
  }

  private listen(): Promise<void> {
    const { host, port } = this.run.config.logging.prometheus;
    return new Promise((resolve, reject) => {
      this.server.on('error', (error: NodeJS.ErrnoException) => {
        const reason = error.code === 'EADDRINUSE' ? 'is in use: set it to another one, or 0' : error.message;
        reject(new Error(`logging.prometheus.port ${port} on ${host} ${reason}`));
      });
      this.server.listen(port, host, () => {
        const { address, family, port: opened } = this.server.address() as AddressInfo;
        const shown = family === 'IPv6' ? `[${address}]` : address;
        this.run.say(`prometheus: http://${shown}:${opened}/metrics`);
        resolve();
      });
    });
  }

  private gauge(metric: string): Gauge<'metric'> {
    const name = prometheusName(metric);
    let gauge = this.gauges.get(name);
    if (gauge === undefined) {
      gauge = new Gauge({
        name,
        help: `Newest value of ${metric}`,
        labelNames: ['metric'],
        registers: [this.registry],
      });
      this.gauges.set(name, gauge);
    }
    return gauge;
  }
}

/** troupe_ and the name, with "_" for every character that Prometheus does not allow. */
export function prometheusName(metric: string): string {
  return `troupe_${metric.replace(/[^a-zA-Z0-9_]/g, '_')}`;
}
