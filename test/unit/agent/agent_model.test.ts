import { ScriptedEngine } from '../../helpers/scripted_engine';
import { run, sessions, task } from './endpoint_world';

afterAll(() => sessions.close());

test('what an agent throws while it is told of tokens costs its trajectory, and no more tokens are made', async () => {
  const engine = new ScriptedEngine(() => ({ tokens: [1, 2, 3] }));
  const submit = engine.submit.bind(engine);
  let aborted = 0;
  engine.submit = (request) => {
    const handle = submit(request);
    const abort = (): void => {
      aborted++;
      handle.abort();
    };
    return Object.assign(Object.create(handle), {
      result: handle.result,
      abort,
      [Symbol.asyncIterator]: () => handle[Symbol.asyncIterator](),
    });
  };
  const onTokens = (): void => {
    throw new Error('the page is gone');
  };
  const agent = { run: (_: unknown, { model }: { model: { generate: CallableFunction } }) => ask(model) };
  const ask = async (model: { generate: CallableFunction }): Promise<void> => {
    await model.generate(task().promptIds, { onTokens });
  };
  const trajectory = await run(agent, { engine });
  expect(trajectory.error).toBe(`the page is gone, at ${__filename}:23`);
  expect(aborted).toBe(1);
});
