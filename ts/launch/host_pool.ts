// The hosts of a run: gathers their agents, keeps watch over them, and starts workers through them.
import { randomBytes } from 'node:crypto';
import type { Launcher } from '../controller/launcher';
import type { Machine } from '../controller/machine';
import { type Conversation, type ListenPlace, MessageServer, type Peer } from '../controller/message_server';
import { TroupeError } from '../errors';
import type { FromHost, HostFacts, ToHost } from '../host/protocol';
import type { ControllerAddress } from '../host/run_agent';
import { HeartbeatMonitor, heartbeatInterval } from '../worker/heartbeat';
import { Host, type HostListener } from './host';
import { checkSame, refusal } from './host_checks';
import { Relay } from './relay';
import type { HostStarter, StartedAgent } from './starter';

export interface HostPoolOptions {
  /** That the run works on. */
  hosts: number;
  /** Further ones that may dial in, to take the place of one that is lost; default 0. */
  spares?: number;
  /** Where the controller listens, for agents and workers. */
  place: ListenPlace;
  /** Default: a new one. */
  token?: string;
  /** Starts the agents; null: they come by themselves. */
  starter: HostStarter | null;
  /** Told where the controller listens, before any agent is waited for. */
  announce?: (address: ControllerAddress) => void;
  /** Called at the end: nobody is waited for any more. */
  withdraw?: () => void;
  /** How long the hosts may take to come. */
  waitMs: number;
  /** How long after its start an agent that has ended again is started once more, while its host is waited for; default 5 s. */
  retryMs?: number;
  /** When the run goes on with fewer hosts; default: never. */
  elastic?: ElasticHosts;
  /** A host that sends nothing for this long is lost. */
  deadTimeoutMs: number;
  say: (line: string) => void;
  /** An engine has sent an agent a signal. */
  onNotice?: (signal: string, host: string) => void;
}

export interface ElasticHosts {
  /** How long a lost host may take to come back, or another in its place, once all have come. */
  waitMs: number;
  /** The run has been at work before: it goes on with those that have come when the time is up, even where others never came. */
  resumes: boolean;
}

/** A host that was lost so often is used again only where no other takes its place. */
const MOST_LOSSES = 2;
const FAREWELL_MS = 5_000;
const RETRY_MS = 5_000;

export class HostPool {
  readonly #options: HostPoolOptions;
  readonly #token: string;
  readonly #relay = new Relay();
  readonly #monitor: HeartbeatMonitor;
  readonly #heartbeat: NodeJS.Timeout;
  /** All that have come, by number of their coming. */
  readonly #all: Host[] = [];
  readonly #agents = new Map<number, StartedAgent>();
  /** When each of the agents was started last, in which round of waiting for hosts, and how it has ended. */
  readonly #starts = new Map<number, { round: number; at: number; ended: string | null }>();
  #round = 0;
  readonly #losses = new Map<string, number>();
  #lastLoss = 0;
  /** The hosts that the run works on. */
  #members: Host[] = [];
  #server!: MessageServer<FromHost, ToHost>;
  #changed: () => void = () => {};
  #broken: TroupeError | null = null;
  #closing: Promise<void> | null = null;

  /**
   * Starts the agents where there is a starter, and waits for all hosts.
   * @throws TroupeError COMM naming the hosts that did not come, or cannot work together; nothing is left behind
   */
  static async gather(options: HostPoolOptions): Promise<HostPool> {
    const pool = new HostPool(options);
    try {
      pool.#server = await MessageServer.listen({
        token: pool.#token,
        place: options.place,
        whose: 'host',
        log: options.say,
        open: (peer) => pool.#converse(peer),
      });
      options.announce?.(pool.address);
      await pool.regroup();
    } catch (error) {
      await pool.close(1);
      throw error;
    }
    return pool;
  }

  private constructor(options: HostPoolOptions) {
    this.#options = options;
    this.#token = options.token ?? randomBytes(32).toString('hex');
    const { deadTimeoutMs } = options;
    this.#monitor = new HeartbeatMonitor(deadTimeoutMs, (number) =>
      this.#lose(this.#all[number] as Host, `it has sent nothing for ${deadTimeoutMs / 1000} s`),
    );
    this.#heartbeat = setInterval(() => {
      for (const host of this.#all) host.heartbeat();
    }, heartbeatInterval(deadTimeoutMs));
  }

  /** The hosts that the run works on, in their order. */
  get members(): readonly Host[] {
    return this.#members;
  }

  /** What an agent needs to dial in. */
  get address(): ControllerAddress {
    return { controllers: [this.#server.address], token: this.#token };
  }

  /**
   * Makes up the number of hosts again: a lost one is replaced by a spare, or by its own agent, which is started again as often as it ends
   * meanwhile, or, with `elastic`, done without.
   * @throws TroupeError COMM when too few have come within the time; CLOSED when the pool is closed meanwhile
   */
  async regroup(): Promise<void> {
    const { hosts, say } = this.#options;
    this.#broken = null;
    this.#round++;
    let retryMs = this.#startAbsent();
    const began = performance.now();
    while (this.#live().length < hosts) {
      if (this.#broken !== null) throw this.#broken;
      if (this.#closing !== null)
        throw new TroupeError('CLOSED', 'the run has ended: no host is waited for any more');
      const { until, least } = this.#patience(began);
      const left = until - performance.now();
      if (left <= 0) {
        if (this.#live().length < least) throw this.#missing();
        say(`going on with ${this.#live().length} of ${hosts} hosts`);
        break;
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(left, retryMs));
        this.#changed = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      if (this.#broken === null && this.#closing === null) retryMs = this.#startAbsent();
    }
    this.#members = this.#live().slice(0, hosts);
    checkSame(this.#members.map(({ facts }) => facts));
  }

  /** Starts workers on the members; spec.host is an index of them. */
  launcher(): Launcher {
    const memberAt = (index: number): Host => {
      const member = this.#members[index];
      if (member !== undefined) return member;
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `expected at most ${this.#members.length} hosts, got host ${index}`,
      );
    };
    const { address, ports } = this.#options.place;
    return {
      start: (spec) => memberAt(spec.host).start(spec),
      listen: { address, ports },
      machine: this.#machine(),
      cores: (index) => memberAt(index).facts.cores,
      forward: (port, to, from) => this.#relay.open(memberAt(from), memberAt(to), port),
    };
  }

  /** Ends the agents, and with them all that they have started; they exit with `exitCode`. Idempotent. */
  close(exitCode: number): Promise<void> {
    this.#closing ??= this.#close(exitCode);
    return this.#closing;
  }

  #machine(): Machine {
    const facts = (): HostFacts[] => this.#members.map((member) => member.facts);
    return {
      gpus: () => {
        const each = facts().map(({ gpus }) => gpus);
        return each.some((gpus) => gpus === null) ? null : Math.min(...(each as number[])) * each.length;
      },
      addonVariant: () => facts()[0]?.addon ?? 'cpu',
    };
  }

  #live(): Host[] {
    const live = this.#all.filter((host) => host.lost === null).sort(inOrder);
    const isDoubtful = (host: Host): boolean => (this.#losses.get(identity(host)) ?? 0) >= MOST_LOSSES;
    return [...live.filter((host) => !isDoubtful(host)), ...live.filter(isDoubtful)];
  }

  /** Until when missing hosts are waited for, and how few will do then. */
  #patience(began: number): { until: number; least: number } {
    const { hosts, waitMs, elastic } = this.#options;
    const end = began + waitMs;
    if (elastic === undefined) return { until: end, least: hosts };
    // A host that has never come may be on its way: only one that was there is known to be gone.
    const complete = this.#members.length > 0 || new Set(this.#all.map(identity)).size >= hosts;
    if (complete && this.#live().length > 0)
      return { until: Math.min(end, Math.max(began, this.#lastLoss) + elastic.waitMs), least: 1 };
    return { until: end, least: elastic.resumes ? 1 : hosts };
  }

  /** Starts the agents of hosts that are not there. @returns milliseconds until that is to be looked at again */
  #startAbsent(): number {
    const { starter, retryMs = RETRY_MS } = this.#options;
    const present = new Set(this.#all.filter(({ lost }) => lost === null).map(({ claimed }) => claimed));
    let next = Number.POSITIVE_INFINITY;
    for (const index of starter?.names.keys() ?? []) {
      if (this.#agents.has(index) || present.has(index)) continue;
      const last = this.#starts.get(index);
      const left = last?.round === this.#round ? last.at + retryMs - performance.now() : 0;
      if (left > 0) next = Math.min(next, left);
      else this.#startAgent(index);
    }
    return next;
  }

  #startAgent(index: number): void {
    const { starter } = this.#options;
    if (starter === null) return;
    const start = { round: this.#round, at: performance.now(), ended: null as string | null };
    this.#starts.set(index, start);
    const agent = starter.start(index, this.address);
    this.#agents.set(index, agent);
    void agent.exited.then((how) => {
      this.#agents.delete(index);
      start.ended = how.split('\n', 1)[0] as string;
      if (this.#closing !== null) return;
      const host = this.#all.find(({ claimed, lost }) => claimed === index && lost === null);
      if (host !== undefined) this.#lose(host, `its agent is gone: ${how}`);
      // Once all were there, another try may do.
      else if (this.#members.length === 0 && this.#all.every(({ claimed }) => claimed !== index)) {
        const name = starter.names[index] as string;
        this.#broken ??= new TroupeError('COMM', `no agent could be started on host ${name}: ${how}`);
      }
      this.#changed();
    });
  }

  #missing(): TroupeError {
    const { hosts, starter, waitMs } = this.#options;
    const here = this.#live().map(({ name }) => name);
    const claimed = new Set(this.#live().map((host) => host.claimed));
    const absent = (starter?.names ?? []).flatMap((name, index) => {
      if (claimed.has(index)) return [];
      const ended = this.#starts.get(index)?.ended;
      return ended == null ? name : `${name} (${ended})`;
    });
    return new TroupeError(
      'COMM',
      `expected ${hosts} hosts at ${this.#server.address}, but within ${waitMs / 1000} s ${here.length} came` +
        `${here.length > 0 ? ` (${here.join(', ')})` : ''}${absent.length > 0 ? `; missing: ${absent.join(', ')}` : ''}` +
        (starter === null ? ': each has to run troupe host-agent, and reach this address' : ''),
    );
  }

  #converse(peer: Peer<ToHost>): Conversation<FromHost> {
    let host: Host | null = null;
    let number = -1;
    return {
      receive: (message) => {
        if (host !== null) {
          host.receive(message);
          return;
        }
        host = this.#greet(peer, message);
        if (host !== null) number = this.#all.push(host) - 1;
        if (number >= 0) this.#monitor.watch(number);
        this.#changed();
      },
      active: () => this.#monitor.heard(number),
      end: (fault) => {
        if (host !== null) this.#lose(host, fault ?? 'its agent ended the connection');
        else if (fault !== null) peer.refuse(fault);
      },
    };
  }

  #greet(peer: Peer<ToHost>, message: FromHost): Host | null {
    const { hosts, spares = 0, starter, deadTimeoutMs } = this.#options;
    const room = Math.max(hosts + spares, starter?.names.length ?? 0);
    const reason = refusal(message, this.#live(), room);
    if (reason !== null || message.type !== 'hello') {
      peer.refuse(reason ?? 'it said nothing');
      return null;
    }
    const index = message.index ?? null;
    peer.send({ type: 'welcome', heartbeatMs: heartbeatInterval(deadTimeoutMs), deadTimeoutMs });
    return new Host(peer, message.facts, index, this.#listener());
  }

  #listener(): HostListener {
    return {
      line: (text) => this.#options.say(text),
      notice: (host, signal) => this.#options.onNotice?.(signal, host.name),
      opened: (host, tunnel, stream) => this.#relay.opened(host, tunnel, stream),
      stream: (host, message) => this.#relay.pass(host, message),
    };
  }

  #lose(host: Host, reason: string): void {
    if (host.lost !== null || this.#closing !== null) return;
    this.#monitor.unwatch(this.#all.indexOf(host));
    this.#losses.set(identity(host), (this.#losses.get(identity(host)) ?? 0) + 1);
    this.#lastLoss = performance.now();
    host.lose(reason);
    this.#relay.lost(host);
    this.#options.say(`host ${host.name} is lost: ${reason}`);
    this.#changed();
  }

  async #close(exitCode: number): Promise<void> {
    this.#options.withdraw?.();
    this.#changed();
    for (const host of this.#all) host.send({ type: 'shutdown', exitCode });
    const gone = Promise.all([...this.#agents.values()].map((agent) => agent.exited));
    let timer: NodeJS.Timeout | undefined;
    await Promise.race([
      gone,
      new Promise((resolve) => {
        timer = setTimeout(resolve, FAREWELL_MS);
      }),
    ]);
    clearTimeout(timer);
    for (const agent of this.#agents.values()) agent.kill();
    clearInterval(this.#heartbeat);
    this.#monitor.stop();
    (this.#server as MessageServer<FromHost, ToHost> | undefined)?.close();
  }
}

/** Of a host, whichever agent speaks for it. */
const identity = ({ name, claimed }: Host): string => (claimed === null ? name : `#${claimed}`);

/** By the index that they were started as, then by name. */
const inOrder = (a: Host, b: Host): number =>
  (a.claimed ?? Number.MAX_SAFE_INTEGER) - (b.claimed ?? Number.MAX_SAFE_INTEGER) ||
  a.name.localeCompare(b.name) ||
  a.facts.pid - b.facts.pid;
