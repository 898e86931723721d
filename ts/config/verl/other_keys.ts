import { show } from '../../base/text';
import { isTree, type Tree } from '../reading/tree';
import type { Rewriting } from './rewriting';

// What verl says by one key and Troupe by another, where a table of names is not enough.

/** Where Megatron keeps the optimiser's state and how it gets it there: nothing that is computed depends on these. */
const OFFLOADING = [
  'optimizer_cpu_offload',
  'optimizer_offload_fraction',
  'overlap_cpu_optimizer_d2h_h2d',
  'use_precision_aware_optimizer',
];

/** Takes such keys out of the source. */
export function otherKeys(rewriting: Rewriting): void {
  const { program, folder } = rewriting.source.program;
  if (program === 'sft') {
    offloading(rewriting, 'optim', 'engine.optimizer_offload', 'model.fsdp_config.optimizer_offload');
    stepNumbers(rewriting, 'optim');
    return;
  }
  for (const role of ['actor_rollout_ref.actor', 'critic']) {
    offloading(rewriting, `${role}.optim`, `${role}.megatron.optimizer_offload`);
    stepNumbers(rewriting, `${role}.optim`);
  }
  for (const role of ['actor_rollout_ref', 'critic']) modelConfig(rewriting, role);
  if (folder === 'recipe.dapo/') generated(rewriting);
  frequencies(rewriting);
  engineName(rewriting);
}

/** verl compares both with 0, for which false is 0. */
function frequencies(rewriting: Rewriting): void {
  for (const key of ['trainer.save_freq', 'trainer.test_freq']) {
    if (rewriting.at(key) !== false) continue;
    const from = rewriting.givenOf(key);
    rewriting.take(key);
    rewriting.compute({ from, to: key, value: -1, why: 'is now -1: never between the steps' });
  }
}

/** A name that v0.4 has for sglang besides. */
function engineName(rewriting: Rewriting): void {
  const key = 'actor_rollout_ref.rollout.name';
  if (rewriting.at(key) !== 'sglang_async') return;
  const from = rewriting.givenOf(key);
  rewriting.take(key);
  rewriting.compute({ from, to: key, value: 'sglang', why: 'is now sglang' });
}

/** The section of a key, where it has keys and all of them are among `names`. */
function sectionOf(rewriting: Rewriting, key: string, names: readonly string[]): Tree | null {
  const section = rewriting.at(key);
  const isOne = isTree(section) && Object.keys(section).length > 0;
  return isOne && Object.keys(section).every((name) => names.includes(name)) ? section : null;
}

/** verl's constant schedule counts from 0 whatever the key says. */
function stepNumbers(rewriting: Rewriting, optim: string): void {
  const key = `${optim}.zero_indexed_step`;
  const type = rewriting.at(`${optim}.warmup_style`) ?? rewriting.at(`${optim}.lr_scheduler_type`);
  if (type === 'constant' && rewriting.at(key) === false)
    rewriting.drop(key, 'is read with the schedule cosine alone');
}

/** @param offload verl's key of the same, `to`: ours */
function offloading(rewriting: Rewriting, optim: string, offload: string, to = offload): void {
  const key = `${optim}.override_optimizer_config`;
  const section = sectionOf(rewriting, key, OFFLOADING);
  if (section === null) return;
  const from = rewriting.givenOf(key);
  rewriting.take(key);
  if (section['optimizer_cpu_offload'] !== true) {
    const why = 'says how the optimiser’s state gets to the host, where it is not';
    for (const path of from) rewriting.note('withoutEffect', path, why);
    return;
  }
  rewriting.take(offload);
  const why = `${to}=true: the optimiser’s state lies on the host, all of it`;
  rewriting.compute({ from, to, value: true, why });
}

/** verl looks for the keys of config.json there first. */
function modelConfig(rewriting: Rewriting, role: string): void {
  const name = 'max_position_embeddings';
  const section = `${role}.model.override_config`;
  const inner = `${section}.model_config`;
  if (rewriting.givenOf(inner).length === 0 || sectionOf(rewriting, inner, [name]) === null) return;
  rewriting.rename(`${inner}.${name}`, `${section}.${name}`);
  rewriting.take(inner);
}

/** Where nothing is filtered, main_dapo learns from all that it generates, whatever train_batch_size is. */
function generated(rewriting: Rewriting): void {
  const [from, to] = ['data.gen_batch_size', 'data.train_batch_size'] as const;
  const [value, trained] = [rewriting.at(from), rewriting.at(to)];
  if (rewriting.at('algorithm.filter_groups.enable') === true) return;
  if (typeof value !== 'number' || value === trained) return;
  const keys = [from, to].flatMap((key) => rewriting.givenOf(key));
  for (const key of [from, to]) rewriting.take(key);
  const why = `${value} prompts are generated, and without algorithm.filter_groups verl learns from all of them: ${to}=${value}, not ${show(trained)}`;
  rewriting.compute({ from: keys, to, value, why });
}
