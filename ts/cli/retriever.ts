// troupe retriever: serves the passages of a corpus until it is interrupted.
import { Bm25Index } from '../agent/search_r1/bm25_index';
import { RetrieverServer, type RetrieverServerOptions } from '../agent/search_r1/retriever_server';

export async function retrieverCommand(
  corpus: readonly string[],
  options: RetrieverServerOptions,
): Promise<number> {
  const started = performance.now();
  const index = await Bm25Index.open(corpus);
  const server = await RetrieverServer.start(index, options);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  process.stdout.write(`${index.size} passages (${seconds} s) at ${server.url}\n`);
  await new Promise<void>((resolve) => {
    process.once('SIGINT', resolve);
    process.once('SIGTERM', resolve);
  });
  await server.close();
  return 0;
}
