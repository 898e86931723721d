import { show } from '../../base/text';
import { leafPaths } from '../reading/tree';
import { missing } from '../schema/field';
import { type Machines, spreadOver } from './machines';
import { Rewriting } from './rewriting';

// Programs of verl that learn while they generate say so in sections of their own, async_training and rollout. Here trainer.v1 does, with a
// step that is what lies between two updates of the rollout's weights.

const SEPARATE = 'trainer.v1.separate_async';
const SAMPLER = 'trainer.v1.sampler';
const TRAINING = 'async_training';
const ROLES = 'actor_rollout_ref';
/** Advantages of these are normalised over all responses that come together. */
const NORMALISED = /^(gae|gdpo|reinforce_plus_plus(_baseline)?)$/;
const ONE_BY_ONE = 'prompts are begun one by one always';
/** The largest that there is. */
const NO_THRESHOLD = 1024;

export class OwnSections extends Rewriting {
  run(): void {
    const { asynchronous, program } = this.source.program;
    if (asynchronous === 'one step off') this.oneStepOff();
    else if (asynchronous === 'fully') this.fully();
    else if (program === 'train') this.main();
  }

  /** trainer.v1 is the same section here. */
  private main(): void {
    const mode = this.at('trainer.v1.trainer_mode');
    if (mode !== 'colocate_async' && mode !== 'separate_async') return;
    this.drop('data.gen_batch_size', ONE_BY_ONE);
    if (mode === 'colocate_async') return;
    this.machines(`${ROLES}.rollout`);
    const pieces = this.number(`${SEPARATE}.parameter_sync_step`);
    const size = this.number('data.train_batch_size');
    if (pieces !== null && size !== null) this.inPieces(pieces, size / pieces);
  }

  /** Batches come in their order, each with the weights of the step before the one that learns from it. */
  private oneStepOff(): void {
    this.program('separate_async with one batch ahead, in their order', {
      [`${SEPARATE}.num_warmup_batches`]: 1,
      [`${SAMPLER}.max_off_policy_threshold`]: 2,
      [`${SAMPLER}.max_off_policy_strategy`]: 'wait',
    });
    this.note('changed', 'the program', 'the first step takes of the first two batches what is done first');
    this.machines('rollout');
    this.withoutFilter();
    this.unknown('rollout');
  }

  private fully(): void {
    this.program('separate_async, and no prompt is left out, however long it took', {
      [`${SAMPLER}.max_off_policy_threshold`]: NO_THRESHOLD,
    });
    this.machines('rollout');
    this.withoutFilter();
    this.rename(`${TRAINING}.staleness_threshold`, `${SEPARATE}.num_warmup_batches`);
    const mini = this.number(`${ROLES}.actor.ppo_mini_batch_size`);
    const [takes, batches] = ['trigger_parameter_sync_step', 'require_batches'].map((key) =>
      this.number(`${TRAINING}.${key}`),
    );
    if (typeof takes === 'number' && typeof batches === 'number' && mini !== null) {
      this.batch(takes, batches, mini);
      this.inPieces(takes, batches * mini);
      this.scheduleEnd(takes);
    }
    this.inFlight();
    this.validation();
    this.logProbs();
    this.ignoredKeys();
    this.unknown(TRAINING);
    this.unknown('rollout');
  }

  private program(words: string, keys: Readonly<Record<string, unknown>>): void {
    const all = { 'trainer.v1.trainer_mode': 'separate_async', ...keys };
    const text = Object.entries(all).map(([key, value]) => `${key}=${value}`);
    this.note('changed', 'the program', `is now ${words}: ${text.join(', ')}`);
    for (const [to, value] of Object.entries(all)) this.compute({ from: [], to, value, why: words });
  }

  /** verl's rollout has GPUs beside those of the trainer, on the same machines or on others; here both lie on the same. */
  private machines(section: string): void {
    const place = `${ROLES}.rollout`;
    const names = ['nnodes', 'n_gpus_per_node'];
    const of = (from: string): Machines => ({
      nodes: this.count(`${from}.nnodes`),
      perNode: this.count(`${from}.n_gpus_per_node`),
    });
    const [trainer, rollout] = [of('trainer'), of(section)];
    const spread = spreadOver(trainer, rollout);
    if (spread === null || spread === 'no whole numbers') {
      if (section !== place) for (const name of names) this.rename(`${section}.${name}`, `${place}.${name}`);
      const both = trainer.perNode + rollout.perNode;
      const why = `verl has ${rollout.nodes} machines for the rollout beside ${trainer.nodes} for the trainer; here its workers lie on those of the trainer, which need ${both} GPUs so: give numbers that fit`;
      if (spread !== null) this.note('changed', `${section}.n_gpus_per_node`, why);
      return;
    }
    const { nodes, trainerEach, rolloutEach } = spread;
    const why =
      `verl has ${rollout.nodes} machines for the rollout beside ${trainer.nodes} for the trainer; here all ${nodes} have workers of both, ` +
      `${trainerEach} of the trainer and ${rolloutEach} of the rollout on each`;
    for (const [from, to, value] of [
      ['trainer.nnodes', 'trainer.nnodes', nodes],
      ['trainer.n_gpus_per_node', 'trainer.n_gpus_per_node', trainerEach],
      [`${section}.nnodes`, `${place}.nnodes`, nodes],
      [`${section}.n_gpus_per_node`, `${place}.n_gpus_per_node`, rolloutEach],
    ] as const) {
      this.compute({ from: this.givenOf(from).includes(from) ? [from] : [], to, value, why });
      this.take(from);
    }
  }

  /** A step is all that lies between two updates of the rollout's weights. */
  private batch(takes: number, batches: number, mini: number): void {
    const size = takes * batches * mini;
    const from = [`${TRAINING}.trigger_parameter_sync_step`, `${TRAINING}.require_batches`];
    const batch = 'data.train_batch_size';
    if (this.givenOf(batch).includes(batch)) from.push(batch);
    const waits = takes > 1 ? '; it learns when all of them are done' : '';
    const why = `a step is what lies between two updates of the rollout's weights, ${takes} x ${batches} x ppo_mini_batch_size ${mini} = ${size} prompts (${batch})${waits}`;
    for (const key of from) this.take(key);
    this.compute({ from, to: batch, value: size, why });
    this.drop('data.gen_batch_size', ONE_BY_ONE);
    const total = 'rollout.total_rollout_steps';
    const prompts = this.number(total);
    this.drop('trainer.total_training_steps', `${total} counts there`);
    this.take(total);
    if (prompts === null) return;
    const steps = Math.floor(prompts / size);
    const rest = prompts % size;
    const left =
      rest === 0 ? '' : `, without the last ${rest} (verl learns from whole ${batches * mini} of them)`;
    this.compute({
      from: [total],
      to: 'trainer.total_training_steps',
      value: steps,
      why: `${prompts} prompts are ${steps} steps of ${size}${left}: trainer.total_training_steps; verl ends earlier where trainer.total_epochs passes over the data are fewer prompts`,
    });
  }

  /**
   * Between two updates of the rollout's weights verl learns in `pieces`, each with advantages and passes of its own, and its learning rate moves
   * with each of them.
   */
  private inPieces(pieces: number, size: number): void {
    if (pieces <= 1) return;
    const estimator = this.at('algorithm.adv_estimator');
    if (typeof estimator === 'string' && NORMALISED.test(estimator))
      this.note(
        'changed',
        'algorithm.adv_estimator',
        `${estimator} normalises over the whole step, there over each ${size} prompts`,
      );
    for (const role of [`${ROLES}.actor`, 'critic']) {
      const passes = this.at(`${role}.ppo_epochs`);
      if (typeof passes === 'number' && passes > 1 && (role !== 'critic' || estimator === 'gae'))
        this.note(
          'changed',
          `${role}.ppo_epochs`,
          `${passes} passes go over the whole step, there over each ${size} prompts`,
        );
      this.updates(`${role}.optim.lr_warmup_steps`, pieces);
      this.updates(`${role}.optim.lr_wsd_decay_steps`, pieces);
      this.updates(`${role}.optim.lr_decay_steps`, pieces, `${role}.optim.total_training_steps`);
    }
  }

  /** A number of updates of the learning rate, as one of steps. */
  private updates(key: string, pieces: number, to = key): void {
    const count = this.at(key);
    if (typeof count !== 'number' || count <= 0) return;
    this.take(key);
    const value = Math.ceil(count / pieces);
    const name = to === key ? '' : ` (${to})`;
    const why = `${count} updates of the learning rate, of which verl makes ${pieces} in a step: ${value} here${name}`;
    this.compute({ from: [key], to, value, why });
  }

  /** The schedule of the fully asynchronous program has as many updates as there are steps, and makes `takes` in each. */
  private scheduleEnd(takes: number): void {
    if (takes <= 1) return;
    for (const role of [`${ROLES}.actor`, 'critic']) {
      const ratio = `${role}.optim.lr_warmup_steps_ratio`;
      const share = this.at(ratio);
      const steps = this.at(`${role}.optim.lr_warmup_steps`);
      if (typeof share === 'number' && share > 0 && (typeof steps !== 'number' || steps <= 0)) {
        this.take(ratio);
        const value = share / takes;
        const why = `of as many updates of the learning rate as there are steps, of which verl makes ${takes} in a step: ${value} here`;
        this.compute({ from: [ratio], to: ratio, value, why });
      }
      for (const name of ['lr_scheduler_type', 'lr_decay_style']) {
        const type = `${role}.optim.${name}`;
        if (this.at(type) !== 'constant' && this.givenOf(type).includes(type))
          this.note('changed', type, `falls once over the run; there in one of ${takes} parts of it`);
      }
    }
  }

  private inFlight(): void {
    const key = `${TRAINING}.partial_rollout`;
    const partial = this.take(key);
    if (partial === undefined) return;
    if (partial !== false)
      this.note('withoutEffect', key, 'requests in flight go on with the new weights always');
    else if (this.renamed.some(({ to, value }) => to.endsWith('num_warmup_batches') && value === 0))
      this.note(
        'withoutEffect',
        key,
        'nothing is in flight when the weights change, as staleness_threshold is 0',
      );
    else
      this.note(
        'notMapped',
        key,
        'got false: updates of the rollout’s weights do not wait for requests in flight: these go on with the new weights',
      );
  }

  /** Both programs count updates of the rollout's weights. */
  private validation(): void {
    const key = 'rollout.test_freq';
    if (this.at(key) === undefined) return;
    this.drop('trainer.test_freq', `${key} counts there`);
    this.rename(key, 'trainer.test_freq');
    this.note('changed', key, 'counts updates of the rollout’s weights, which are steps here');
  }

  /** Of verl 0.6, which has no bypass mode. */
  private logProbs(): void {
    const [recorded, recomputed] = ['use_rollout_log_probs', 'compute_prox_log_prob'].map((key) => ({
      key: `${TRAINING}.${key}`,
      value: this.take(`${TRAINING}.${key}`),
    }));
    if (recorded?.value === undefined || recomputed === undefined) return;
    const value = recorded.value === true && recomputed.value !== true;
    const why = `is now algorithm.rollout_correction.bypass_mode=${value}`;
    const from = [recorded, recomputed].filter((one) => one.value !== undefined).map(({ key }) => key);
    this.compute({ from, to: 'algorithm.rollout_correction.bypass_mode', value, why });
  }

  private ignoredKeys(): void {
    const memory = `${ROLES}.rollout.standalone_gpu_memory_utilization`;
    if (typeof this.at(memory) === 'number') {
      const shared = `${ROLES}.rollout.gpu_memory_utilization`;
      this.drop(shared, `is of GPUs that learn as well; ${memory} holds`);
      this.rename(memory, shared);
    } else this.drop(memory, 'is null: gpu_memory_utilization holds');
    const lending = `${TRAINING}.use_dynamic_resource_scheduling`;
    if (this.at(lending) === true) {
      this.take(lending);
      this.note('notMapped', lending, `got true: ${missing('lending the trainer’s GPUs to the rollout')}`);
    } else this.drop(lending, 'the GPUs of the trainer are not lent to the rollout');
    for (const key of ['policy', 'deactivate_ratio', 'enable_rebalance'])
      this.drop(`${TRAINING}.dynamic_schedule_${key}`, 'is of the trainer’s GPUs lent to the rollout');
    for (const [key, why] of [
      [`${TRAINING}.use_trainer_do_validate`, 'validation is where the rollout is'],
      [`${TRAINING}.concurrent_samples_per_replica`, `${ROLES}.rollout.max_num_seqs is the limit`],
      [`${TRAINING}.checkpoint_engine`, 'weights go to the rollout in buckets always'],
      ['rollout.n', `${ROLES}.rollout.n counts`],
      ['rollout.total_epochs', 'rollout.total_rollout_steps ends the run'],
    ] as const)
      this.drop(key, why);
  }

  /** Neither program looks at it. */
  private withoutFilter(): void {
    if (this.at('algorithm.filter_groups.enable') === true)
      this.drop('algorithm.filter_groups', 'verl’s program does not filter');
  }

  /** What is left of a section. */
  private unknown(section: string): void {
    const left = this.at(section);
    for (const key of leafPaths({ [section]: left === undefined ? {} : left }))
      this.note('notMapped', key, `is not known here (its value: ${show(this.at(key))})`);
    this.take(section);
  }
}
