import type { Grammars } from '../../../ts/serve/call/grammars';
import { answerChat } from '../../../ts/serve/openai/chat';
import { servers, until } from './served';

const serve = servers();

const ask = { messages: [{ role: 'user', content: 'go' }], response_format: { type: 'json_object' } };

/** Grammars that allow everything, and how many of them are open. `before`: awaited by the one of this number. */
class CountedGrammars implements Grammars {
  count = 0;
  isOpen = 0;

  constructor(private readonly before: (number: number) => Promise<unknown>) {}

  async open() {
    await this.before(this.count++);
    this.isOpen++;
    return { next: () => null, close: () => void this.isOpen-- };
  }
  async close(): Promise<void> {}
}

test('a grammar is closed when its response has ended, also where nobody reads it', async () => {
  const grammars = new CountedGrammars(async () => undefined);
  const s = await serve(() => '{}', { grammars });
  const gone = new AbortController();
  const answer = answerChat(s.model, { ...ask, n: 2, stream: true }, gone.signal);
  // The client leaves while its schema is compiled.
  gone.abort();
  expect(await answer).toHaveProperty('events');
  expect(grammars.count).toBe(2);
  await until(() => grammars.isOpen === 0 && s.engine.running === 0);
  expect(s.engine.aborted).toBe(2);
});

test('choices that have started end when a later one cannot', async () => {
  const grammars = new CountedGrammars(async (number) => {
    if (number === 2) throw new Error('no memory left');
  });
  const s = await serve(() => '{}'.repeat(1000), { grammars });
  const listened = new AbortController();
  const removed = jest.spyOn(listened.signal, 'removeEventListener');
  await expect(answerChat(s.model, { ...ask, n: 4 }, listened.signal)).rejects.toThrow('no memory left');
  await until(() => grammars.isOpen === 0 && s.engine.running === 0);
  expect([grammars.count, s.engine.aborted]).toEqual([3, 2]);
  // Signals of sessions outlive their calls.
  expect(removed).toHaveBeenCalledWith('abort', expect.any(Function));
});
