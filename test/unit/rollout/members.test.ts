import type { InferenceServer } from '../../../ts/rollout/remote/inference_server';
import { chooseMember, type Member, memberOf } from '../../../ts/rollout/remote/members';
import { request } from '../../helpers/counting_servers';

function members(count: number, changes: Partial<Member>[] = []): Member[] {
  return Array.from({ length: count }, (_, i) => ({
    ...memberOf({} as InferenceServer, i),
    up: true,
    ...changes[i],
  }));
}

const long = (end: number): number[] => [...Array.from({ length: 256 }, (_, i) => i), end];
const ofIds = (promptIds: number[], session?: string) => ({
  ...request(0),
  promptIds,
  ...(session === undefined ? {} : { session }),
});
/** Which of four idle ones it goes to. */
const place = (promptIds: number[], session?: string): number =>
  chooseMember(members(4), ofIds(promptIds, session), 10)?.index ?? -1;

test.each([
  ['is not up', { up: false }],
  ['rests', { resting: true }],
  ['is full', { inFlight: 2 }],
])('nothing goes to a server that %s', (_, change) => {
  expect(chooseMember(members(1, [change]), request(1), 2)).toBeNull();
  for (let first = 0; first < 20; first++)
    expect(chooseMember(members(2, [change, { inFlight: 1 }]), request(first), 2)?.index).toBe(1);
});

test('prompts that begin alike go to one server, and so do the requests of a session', () => {
  const ends = Array.from({ length: 20 }, (_, end) => end);
  // They differ behind the tokens that tell a prefix apart.
  expect(new Set(ends.map((end) => place(long(end)))).size).toBe(1);
  expect(new Set(ends.map((end) => place([end]))).size).toBe(4);
  expect(new Set(ends.map((end) => place([end], 'one'))).size).toBe(1);
  expect(new Set(ends.map((end) => place([1], `session ${end}`))).size).toBe(4);
});

test('a server that comes or goes moves no request between the others', () => {
  for (let first = 0; first < 50; first++) {
    const four = chooseMember(members(4), request(first), 10)?.index;
    const three = chooseMember(members(4, [{}, {}, { up: false }]), request(first), 10)?.index;
    if (four !== 2) expect(three).toBe(four);
  }
});

test('one that has far more to do than another gets nothing for the sake of its cache', () => {
  const own = place([7]);
  const busy = (inFlight: number): number | undefined => {
    const changes = Array.from({ length: 4 }, (_, i) => ({ inFlight: i === own ? inFlight : 3 }));
    return chooseMember(members(4, changes), ofIds([7]), 100)?.index;
  };
  expect(busy(19)).toBe(own);
  expect(busy(20)).not.toBe(own);
});
