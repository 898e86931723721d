// troupe retriever: serves the passages of a corpus until it is interrupted.

import type { Argv } from 'yargs';
import type { RetrieverServerOptions } from '../agent/search_r1/retriever_server';
import { UsageError } from './report';
import { askedToEnd } from './requests';

export async function retrieverCommand(
  corpus: readonly string[],
  options: RetrieverServerOptions,
): Promise<number> {
  const { Bm25Index } =
    require('../agent/search_r1/bm25_index') as typeof import('../agent/search_r1/bm25_index');
  const { RetrieverServer } =
    require('../agent/search_r1/retriever_server') as typeof import('../agent/search_r1/retriever_server');
  const started = performance.now();
  const index = await Bm25Index.open(corpus);
  const server = await RetrieverServer.start(index, options);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const asked = askedToEnd();
  process.stdout.write(`${index.size} passages (${seconds} s) at ${server.url}\n`);
  await asked;
  await server.close();
  return 0;
}

export const withRetriever = (y: Argv) =>
  y
    .positional('corpus', {
      type: 'string',
      array: true,
      demandOption: true,
      describe: '.jsonl, .json or .parquet with rows {id, contents} or {id, title, text}',
    })
    .option('host', {
      type: 'string',
      requiresArg: true,
      default: '127.0.0.1',
      describe: 'Address to listen on; anybody who reaches it can search',
    })
    .option('port', { type: 'number', requiresArg: true, default: 8000, describe: '0: a free one' })
    .option('topk', {
      type: 'number',
      requiresArg: true,
      default: 10,
      describe: 'Passages per query where a request does not say',
    });

/** @throws UsageError naming the option that is out of range */
export function retrieverTask(a: Awaited<ReturnType<typeof withRetriever>['argv']>): () => Promise<number> {
  const { corpus, host, port, topk } = a;
  for (const [name, value, least, most] of [
    ['port', port, 0, 65535],
    ['topk', topk, 1, 1000],
  ] as const) {
    if (!(Number.isInteger(value) && value >= least && value <= most))
      throw new UsageError(
        `retriever: --${name}: expected an integer from ${least} to ${most}, got ${value}`,
      );
  }
  return () => retrieverCommand(corpus, { host, port, topk });
}
