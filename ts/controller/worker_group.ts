import { randomBytes } from 'node:crypto';
import { TroupeError } from '../errors';
import type { NativeBuildInfo, NativeEngineOptions, NativeMemoryInfo } from '../native/bridge';
import { HeartbeatMonitor, heartbeatInterval } from '../worker/heartbeat';
import type {
  BindingArgs,
  BindingMethod,
  BindingResult,
  EngineArgs,
  EngineMethod,
  EngineResult,
  WorkerMessage,
} from '../worker/protocol';
import { CallWatch, type Overdue } from './call_watch';
import { cannotStart, groupClosed, lostPeers, rankFailed } from './group_errors';
import { type ResolvedGroupOptions, resolveGroupOptions, type WorkerGroupOptions } from './group_options';
import { findCulprit, whereSilent } from './hang';
import { jointFailure } from './joint_failure';
import type { Launcher } from './launcher';
import { createLocalLauncher } from './local_launcher';
import { Member } from './member';
import { PeerReports } from './peer_reports';
import { joinArguments } from './rank_meeting';
import { RankPlaces } from './rank_places';
import { ControllerServer } from './server';
import { Startup } from './startup';
import { within } from './within';
import { type AnsweredCall, describeRequest, type Land, type NewRequest } from './worker_requests';

type State = 'STARTING' | 'RUNNING' | 'FAILED' | 'CLOSED';

/** A stream that ends is followed by the end of its process, whose exit code says more: wait this long for it. */
const exitAfterDisconnectMs = 2_000;
/** The peers of a dead rank may end by themselves for this long before they are killed. */
const abortGraceMs = 200;

/** The worker processes of one run, one per rank, with the engines in them. When one dies, every pending and later call rejects with the same WorkerDiedError, the first cause, and its peers are killed. */
export class WorkerGroup {
  readonly worldSize: number;
  /** Workers of this group on each host. */
  readonly ranksPerHost: number;
  /** What the workers were started for: engines in them run on it. */
  readonly device: 'cpu' | 'cuda';
  /** Resolves with the first cause when the group fails, also while no call is pending. */
  readonly failed: Promise<TroupeError>;
  readonly #options: ResolvedGroupOptions;
  readonly #members: Member[] = [];
  /** Shown by every worker that dials in, and to each other. */
  readonly #token = randomBytes(32).toString('hex');
  readonly #monitor: HeartbeatMonitor;
  readonly #startup: Startup;
  readonly #places: RankPlaces;
  #server: ControllerServer | null = null;
  #starter: Launcher | null = null;
  #state: State = 'STARTING';
  #failure: TroupeError | null = null;
  #announceFailure!: (error: TroupeError) => void;
  #phase: string | null = null;
  #closing: Promise<void> | null = null;
  #connecting: Promise<void> | null = null;
  readonly #reports = new PeerReports();
  #watch: CallWatch | null = null;
  /** Which rank holds up the others is being found out. */
  #hangs = false;

  /**
   * Starts the processes and waits until each has dialled in and loaded the addon. Rejects, with no process left behind, with WorkerDiedError
   * when a worker ends or is not ready in time, and with the worker's own error (NATIVE_UNAVAILABLE, ...) when it cannot load the addon.
   */
  static async launch(options: WorkerGroupOptions): Promise<WorkerGroup> {
    const group = new WorkerGroup(options);
    try {
      await group.#start();
    } catch (error) {
      await group.close();
      throw error;
    }
    return group;
  }

  private constructor(given: WorkerGroupOptions) {
    const options = resolveGroupOptions(given);
    const { worldSize, device, deadTimeoutMs } = options;
    this.worldSize = worldSize;
    this.device = device;
    this.failed = new Promise((resolve) => {
      this.#announceFailure = resolve;
    });
    this.#options = options;
    this.#places = new RankPlaces(worldSize, options.hosts, options.pool);
    this.ranksPerHost = this.#places.perHost;
    this.#monitor = new HeartbeatMonitor(deadTimeoutMs, (rank) => void this.#onSilence(this.#member(rank)));
    this.#startup = new Startup(options.startupTimeoutMs, deadTimeoutMs);
  }

  /** The first cause, once the group has failed. */
  get failure(): TroupeError | null {
    return this.#failure;
  }

  /** Named in the error when a worker dies: the part of the step that the trainer is in. */
  setPhase(phase: string | null): void {
    this.#phase = phase;
  }

  /**
   * Lets the ranks reach each other, for engines with `sharding`: rank 0 opens a meeting point on 127.0.0.1 of its host, to which the launcher
   * leads those of other hosts, and all join. Idempotent; nothing for one rank.
   */
  connect(): Promise<void> {
    this.#connecting ??= this.#connect();
    return this.#connecting;
  }

  /** Makes an engine of this name on every rank. */
  async createEngine(engine: string, options: NativeEngineOptions): Promise<void> {
    await this.#requestAll({ type: 'createEngine', engine, options });
  }

  /** Frees the engine on every rank, behind the work queued for it; nothing when there is none. */
  async closeEngine(engine: string): Promise<void> {
    // A group that is closed has closed its engines.
    await (this.#closing ?? this.#requestAll({ type: 'closeEngine', engine }));
  }

  /** Calls a binding function of an engine on every rank, each with its own arguments (a tuple); results by rank. */
  async callAll<M extends EngineMethod, const A extends EngineArgs<M>>(
    engine: string,
    method: M,
    argsByRank: readonly A[] | ((rank: number) => A),
    land?: (rank: number, value: EngineResult<M>) => void,
  ): Promise<EngineResult<M>[]> {
    const argsOf = typeof argsByRank === 'function' ? argsByRank : (rank: number): A => argsByRank[rank]!;
    return await this.#together(
      `${method} of '${engine}'`,
      this.#members.map(({ rank }) => {
        const own = land && ((value: EngineResult<M>): void => land(rank, value));
        return this.callRank(rank, engine, method, argsOf(rank), own);
      }),
    );
  }

  /** `land` is called when the arrays of the answer are about to come, says where each lands, and drops the others (message_arrays.ts). */
  async callRank<M extends EngineMethod>(
    rank: number,
    engine: string,
    method: M,
    args: EngineArgs<M>,
    land?: (value: EngineResult<M>) => void,
  ): Promise<EngineResult<M>> {
    const request: NewRequest = { type: 'callEngine', engine, method, args, answerLands: land !== undefined };
    return (await this.#request(this.#member(rank), request, land as Land | undefined)) as EngineResult<M>;
  }

  /** Calls it on ranks that can only go on together; results in their order. An error that not all of them run into ends the group. */
  async callRanks<M extends EngineMethod, const A extends EngineArgs<M>>(
    ranks: readonly number[],
    engine: string,
    method: M,
    argsOf: (rank: number) => A,
  ): Promise<EngineResult<M>[]> {
    const calls = ranks.map((rank) => this.callRank(rank, engine, method, argsOf(rank)));
    return await this.#together(`${method} of '${engine}'`, calls, ranks);
  }

  /** Calls a binding function that needs no engine: policyLoss, valueLoss, ... */
  async callBinding<M extends BindingMethod>(
    method: M,
    args: BindingArgs<M>,
    rank: number = 0,
  ): Promise<BindingResult<M>> {
    return (await this.#request(this.#member(rank), {
      type: 'callBinding',
      method,
      args,
    })) as BindingResult<M>;
  }

  /** By rank. */
  memoryInfo(): Promise<NativeMemoryInfo[]> {
    return Promise.all(this.#members.map(({ rank }) => this.callBinding('memoryInfo', [], rank)));
  }

  /** Of rank 0, as it was at the start. */
  buildInfo(): NativeBuildInfo {
    return this.#members[0]!.buildInfo!;
  }

  /** Ends the running call of every engine, and all later ones, with ABORTED; overtakes queued work. */
  abort(reason: string): void {
    for (const { client } of this.#members) client.sendNow({ type: 'abort', reason });
  }

  /**
   * Lets the workers finish what is queued and exit, kills those that take longer than closeTimeoutMs, and frees
   * the port. Idempotent; also cleans up after a failure.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #start(): Promise<void> {
    const { worldSize } = this;
    const token = this.#token;
    const { launcher } = this.#options;
    const starter = launcher !== undefined && 'start' in launcher ? launcher : createLocalLauncher(launcher);
    this.#starter = starter;
    const heartbeatMs = heartbeatInterval(this.#options.deadTimeoutMs);
    this.#server = await ControllerServer.listen({
      worldSize,
      token,
      ...(starter.listen === undefined ? {} : { place: starter.listen }),
      heartbeatMs,
      log: this.#options.log,
      onConnect: (connection) => {
        this.#member(connection.rank).connection = connection;
        connection.send({ type: 'welcome', heartbeatMs });
      },
      onActivity: (rank) => this.#monitor.heard(rank),
      onMessage: (rank, message) => this.#onMessage(this.#member(rank), message),
      onLanding: (rank, message) => this.#member(rank).client.landing(message),
      onDisconnect: (rank, fault) => this.#onDisconnect(this.#member(rank), fault),
    });
    const { address: controller } = this.#server;
    const { device, numThreads, logs, callLimits } = this.#options;
    const { pool } = this.#places;
    for (let rank = 0; rank < worldSize; rank++) {
      const cores = starter.cores?.(this.#places.hostOf(rank));
      const process = starter.start(
        this.#places.spec(rank, { controller, token, device, numThreads, cores }),
      );
      const log = logs?.of(pool, rank) ?? null;
      const member = new Member(rank, pool, process, log, (call) => this.#answered(member, call));
      this.#members.push(member);
      void process.exited.then((exit) => {
        member.exit = exit;
        this.#fail(member.death(this.#phase));
      });
    }
    await this.#startup.wait(this.#members);
    if (callLimits !== undefined)
      this.#watch = new CallWatch(callLimits, this.#members, (overdue) => void this.#onOverdue(overdue));
    this.#state = 'RUNNING';
  }

  #member(rank: number): Member {
    const member = this.#members[rank];
    if (member !== undefined) return member;
    throw new TroupeError('INVALID_ARGUMENT', `expected a rank from 0 to ${this.worldSize - 1}, got ${rank}`);
  }

  async #connect(): Promise<void> {
    if (this.worldSize === 1) return;
    const { backend, collectiveTimeoutMs } = this.#options;
    const found = { members: this.#members, places: this.#places, launcher: this.#starter };
    const meeting = { ...found, backend, token: this.#token, collectiveTimeoutMs };
    const args = await joinArguments(meeting, await this.callBinding('openRendezvous', []));
    await this.#together(
      'joinGroup',
      this.#members.map(({ rank }) => this.callBinding('joinGroup', args[rank]!, rank)),
    );
  }

  async #requestAll(request: NewRequest): Promise<void> {
    await this.#together(
      describeRequest(request),
      this.#members.map((member) => this.#request(member, request)),
    );
  }

  async #request(member: Member, request: NewRequest, land?: Land): Promise<unknown> {
    if (this.#state === 'CLOSED' && this.#failure === null) throw groupClosed();
    try {
      return await member.client.request(request, land);
    } catch (error) {
      // Noted before there is a failure, too: a peer's loss may be heard of here before the death itself.
      this.#reports.note(member.rank, error);
      if (this.#failure === null && (!this.#hangs || this.#state === 'CLOSED')) throw error;
      throw await this.failed;
    }
  }

  #answered({ rank, pool }: Member, call: AnsweredCall): void {
    this.#watch?.answered(call);
    if (!call.isOfEngine) return;
    const { what: name, begun: start, end } = call;
    // On a GPU the host's thread may spin while it waits.
    const busyMs = this.device === 'cpu' ? call.busyMs : null;
    this.#options.onCall?.({ rank, pool, name, phase: this.#phase, busyMs, start, end });
  }

  async #onOverdue(overdue: Overdue): Promise<void> {
    if (this.#state !== 'RUNNING') return;
    this.#hangs = true;
    // A debugger stops a process for a while.
    this.#monitor.stop();
    const abort = (): void => this.abort(`a call hangs: ${overdue.what}`);
    const { member, reason } = await findCulprit(overdue, this.#members, this.#reports, abort);
    this.#fail(member.death(this.#phase, reason, overdue.what));
    // Closed meanwhile: calls may wait for the outcome.
    if (this.#failure === null) this.#announceFailure(groupClosed());
  }

  /**
   * The results of one call (`what`) on every rank, or on those `inStep`. Where ranks work together, an error of some leaves the others
   * waiting in a collective, and a lost collective leaves all of them useless: both fail the group. An error that every rank runs into,
   * or one that keeps no other from its result (of ranks that are not `inStep`), is only thrown.
   */
  async #together<T>(what: string, calls: Promise<T>[], inStep?: readonly number[]): Promise<T[]> {
    try {
      return await Promise.all(calls);
    } catch (error) {
      if (this.#connecting === null || this.#failure !== null) throw error;
      const { rank, cause, fatal, alone } = await jointFailure(calls, inStep);
      if (!fatal) throw alone ? rankFailed(cause, this.#member(rank), this.#phase, what) : cause;
      // The death that lost the collective may still be on its way, and says more.
      if (lostPeers(cause)) await within(exitAfterDisconnectMs, this.failed);
      this.#fail(rankFailed(cause, this.#member(rank), this.#phase, what));
      // Closed meanwhile.
      if (this.#failure === null) throw cause;
      throw await this.failed;
    }
  }

  #onMessage(member: Member, message: WorkerMessage): void {
    switch (message.type) {
      case 'ready':
        member.buildInfo = message.buildInfo;
        this.#monitor.watch(member.rank);
        this.#startup.progress();
        break;
      case 'result':
        member.client.receive(message);
        break;
      case 'error':
        if (message.requestId !== null) member.client.receive(message);
        else this.#fail(cannotStart(message.error, member));
        break;
      default: // hello and heartbeat have said all they have to say by coming
    }
  }

  async #onSilence(member: Member): Promise<void> {
    const what = `it has sent nothing for ${this.#options.deadTimeoutMs / 1000} s, although its process exists`;
    const where = await whereSilent(member);
    this.#fail(member.death(this.#phase, `${what}${where}`));
  }

  #onDisconnect(member: Member, fault: string | null): void {
    member.connection = null;
    this.#monitor.unwatch(member.rank);
    if (fault !== null) {
      this.#fail(member.death(this.#phase, fault));
      return;
    }
    const closed = (): void => this.#fail(member.death(this.#phase, 'it closed its connection'));
    setTimeout(closed, exitAfterDisconnectMs).unref();
  }

  /** The first cause wins; whatever follows from it is not reported. */
  #fail(error: TroupeError): void {
    if (this.#state === 'FAILED' || this.#state === 'CLOSED') return;
    this.#state = 'FAILED';
    this.#failure = error;
    this.#monitor.stop();
    this.#watch?.stop();
    this.abort(error.message);
    this.#startup.fail(error);
    if (this.#connecting === null) this.#announce(error);
    else void this.#reports.addTo(error, this.#members).then(() => this.#announce(error));
  }

  #announce(error: TroupeError): void {
    this.#announceFailure(error);
    for (const member of this.#members) member.client.fail(error);
    setTimeout(() => this.#killAll(), this.worldSize === 1 ? 0 : abortGraceMs);
  }

  #killAll(): void {
    for (const member of this.#members) member.kill();
  }

  async #close(): Promise<void> {
    const graceful = this.#state === 'RUNNING';
    this.#state = 'CLOSED';
    this.#watch?.stop();
    const exited = Promise.all(this.#members.map((member) => member.process.exited));
    if (graceful) {
      for (const { client } of this.#members) client.send({ type: 'shutdown' });
      await within(this.#options.closeTimeoutMs, exited);
    }
    this.#monitor.stop();
    this.#killAll();
    await within(exitAfterDisconnectMs, exited);
    for (const { client } of this.#members) client.fail(groupClosed());
    this.#server?.close();
  }
}
