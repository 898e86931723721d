import { runCli } from '../../../ts/cli/program';

const refused = (argv: string[]) => expect(runCli(argv)).rejects;

test('a port or a number of passages that is none is a mistake of usage', async () => {
  await refused(['retriever', 'c.jsonl', '--port', '70000']).toThrow(
    /--port: expected an integer from 0 to 65535, got 70000/,
  );
  await refused(['retriever', 'c.jsonl', '--topk', '0']).toThrow(
    /--topk: expected an integer from 1 to 1000, got 0/,
  );
  await refused(['retriever']).toThrow(/Expected a .jsonl, .json or .parquet file with passages/);
});

test('a corpus that is not there is an error', async () => {
  await refused(['retriever', 'no/such/corpus.jsonl']).toMatchObject({ code: 'IO' });
});

test('agents are tried on a task', async () => {
  await refused(['agent', 'try', 'x.yaml']).toThrow(/Missing required argument: task/);
  await refused(['agent', 'train', 'x.yaml', '--task', 'x']).toThrow(/Choices: "try"/);
});
