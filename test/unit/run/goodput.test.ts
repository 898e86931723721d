import { Goodput } from '../../../ts/run/goodput';

test('starts, failures and steps made again are no good time', () => {
  const goodput = new Goodput(1000);
  expect(goodput.share(1000)).toBe(0);
  goodput.stepDone(1, 500); // after a start of 500 ms
  expect(goodput.share(2000)).toBe(0.5);
  goodput.stepDone(2, 500);
  goodput.stepDone(3, 500);
  expect(goodput.share(3000)).toBe(0.75);
  // A failure: two seconds until steps are made again, two of which were there before.
  goodput.stepDone(2, 500);
  goodput.stepDone(3, 500);
  expect([goodput.lostSteps, goodput.step, goodput.share(6000)]).toEqual([2, 3, 0.3]);
  goodput.stepDone(4, 500);
  expect([goodput.lostSteps, goodput.step]).toEqual([2, 4]);
  expect(goodput.share(6500)).toBeCloseTo(2000 / 5500, 12);
});
