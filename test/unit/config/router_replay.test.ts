import { loadConfig } from '../../../ts/config/config';
import { routerReplay } from '../../../ts/config/derived/router_replay';
import { rolloutOptions } from '../../../ts/roles/settings';
import { writeConfig } from './write_config';

const ACTOR = 'actor_rollout_ref.actor';
const RECORDING = 'actor_rollout_ref.rollout.enable_rollout_routing_replay';
const configured = (...overrides: string[]) => loadConfig(writeConfig(), overrides);

test('off unless it is asked for, under either key of verl', () => {
  expect(routerReplay(configured())).toBe('disabled');
  expect(rolloutOptions(configured()).routedExperts).toBe(false);
  expect(routerReplay(configured(`${ACTOR}.router_replay.mode=R2`))).toBe('R2');
  expect(routerReplay(configured(`${ACTOR}.megatron.router_replay.mode=R2`))).toBe('R2');
  const both = ['R3', 'R3'].map((mode, i) => `${ACTOR}${i ? '.megatron' : ''}.router_replay.mode=${mode}`);
  const recorded = configured(...both, `${RECORDING}=true`);
  expect(routerReplay(recorded)).toBe('R3');
  expect(rolloutOptions(recorded).routedExperts).toBe(true);
});

test.each<[string[], RegExp]>([
  [[`${ACTOR}.router_replay.mode=R4`], /router_replay\.mode: expected/],
  [
    [`${ACTOR}.router_replay.mode=R2`, `${ACTOR}.megatron.router_replay.mode=R3`],
    /megatron\.router_replay\.mode: is R3, but actor_rollout_ref\.actor\.router_replay\.mode is R2/,
  ],
  [[`${ACTOR}.router_replay.mode=R3`], /enable_rollout_routing_replay: expected true because/],
  [[`${RECORDING}=true`], /enable_rollout_routing_replay: is true, but router_replay\.mode is disabled/],
  [[`${ACTOR}.router_replay.mode=R2`, `${RECORDING}=true`], /only R3 reads what the rollout records/],
  [
    [
      `${ACTOR}.router_replay.mode=R2`,
      'algorithm.rollout_correction.bypass_mode=true',
      'algorithm.rollout_correction.rollout_is=token',
    ],
    /R2 records while old log-probs are computed/,
  ],
  [['critic.megatron.router_replay.mode=R2'], /critic\.megatron\.router_replay\.mode: expected disabled/],
  [[`${ACTOR}.router_replay.record_file=x`], /needs routing in files/],
  [['actor_rollout_ref.ref.router_replay.mode=R2'], /router replay of the reference/],
  [
    [
      `${ACTOR}.router_replay.mode=R3`,
      `${RECORDING}=true`,
      'actor_rollout_ref.rollout.name=vllm',
      'actor_rollout_ref.rollout.mode=managed',
    ],
    /only our own engine says which experts it chose/,
  ],
  [
    [`${ACTOR}.router_replay.mode=R3`, `${RECORDING}=true`, 'actor_rollout_ref.rollout.agent.path=x.mjs'],
    /turns of agents are not recorded/,
  ],
])('refused: %j', (overrides, reason) => {
  expect(() => configured(...overrides)).toThrow(reason);
});
