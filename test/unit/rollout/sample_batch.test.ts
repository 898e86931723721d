import { sampleBatch } from '../../../ts/rollout/batch';
import type { RolloutEngine, RolloutHandle } from '../../../ts/rollout/engine';
import { fakeRollout } from '../../helpers/fake_rollout';

test('a prompt that an engine refuses gives those before it up', async () => {
  const engine = fakeRollout((requests) => requests.map(() => ({ tokens: [1], logProbs: [0] })));
  let [running, aborted] = [0, 0];
  const refusing: RolloutEngine = Object.assign(Object.create(engine), {
    submit(request: Parameters<RolloutEngine['submit']>[0]): RolloutHandle {
      if (request.promptIds[0] === 7) throw new Error('it is refused');
      running++;
      let end = (): void => undefined;
      const result = new Promise<never>((_, reject) => {
        end = () => reject(new Error('it was given up'));
      });
      result.catch(() => undefined);
      return {
        ...engine.submit(request),
        result,
        abort: () => {
          aborted++;
          end();
        },
      };
    },
  });
  await expect(sampleBatch(refusing, [[1], [2], [7]], { maxNewTokens: 3, n: 2 })).rejects.toThrow(
    'it is refused',
  );
  expect([running, aborted]).toEqual([4, 4]);
});
