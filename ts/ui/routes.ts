// What the page can ask for.
import { z } from 'zod';
import { csvName, csvPieces } from './csv';
import type { Series } from './protocol';
import { RequestError } from './request_error';
import { sparkline } from './run_summary';
import type { RunView } from './run_view';
import type { Runs } from './runs';

const MOST_SERIES = 200;
const number = z.coerce.number().refine(Number.isFinite);
const maybe = number.nullable().default(null);

const seriesQuery = z.object({
  run: z.array(z.string()).min(1).max(20),
  name: z.array(z.string()).min(1).max(MOST_SERIES),
  x: z.enum(['step', 'time', 'tokens']).default('step'),
  from: maybe,
  to: maybe,
  points: z.coerce.number().int().min(4).max(20_000).default(1000),
  smoothing: z.coerce.number().min(0).max(0.9999).default(0),
});

const csvQuery = seriesQuery.omit({ points: true }).extend({ name: z.array(z.string()).length(1) });

const sampleQuery = z.object({
  kind: z.enum(['train', 'validation']).nullable().default(null),
  stepFrom: maybe,
  stepTo: maybe,
  scoreFrom: maybe,
  scoreTo: maybe,
  lengthFrom: maybe,
  lengthTo: maybe,
  source: z.string().nullable().default(null),
  text: z.string().max(1000).default(''),
  sameAs: z.string().nullable().default(null),
  order: z.enum(['newest', 'oldest', 'best', 'worst', 'longest']).default('newest'),
});
const pageQuery = z.object({
  offset: z.coerce.number().int().min(0).default(0),
  limit: z.coerce.number().int().min(1).max(500).default(100),
});

const LISTS = ['run', 'name'];

/** Parameters as an object; empty ones count as not given. */
function read<T>(schema: z.ZodType<T>, params: URLSearchParams): T {
  const given: Record<string, unknown> = {};
  for (const [key, value] of params) {
    if (LISTS.includes(key)) given[key] = [...((given[key] as string[] | undefined) ?? []), value];
    else if (value !== '') given[key] = value;
  }
  const parsed = schema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new RequestError(400, `${issue?.path.join('.')}: ${issue?.message}`);
}

type Route = (params: URLSearchParams) => unknown;

/** By path below /api/. Each answers with what becomes JSON. @throws RequestError */
export function routesOf(runs: Runs): ReadonlyMap<string, Route> {
  const view = (params: URLSearchParams): RunView => {
    const id = params.get('run') ?? '';
    const found = runs.view(id);
    if (found === null) throw new RequestError(404, 'there is no such run');
    return found;
  };
  const maybeNumber = (params: URLSearchParams, key: string): number | null =>
    read(z.object({ [key]: maybe }), params)[key] as number | null;
  return new Map<string, Route>([
    [
      'runs',
      () => {
        // Nobody has looked while no page was open.
        runs.list.scan();
        return runs.list.all();
      },
    ],
    [
      'sparklines',
      (params) =>
        params
          .getAll('run')
          .slice(0, 60)
          .flatMap((id) => (runs.list.has(id) ? [{ id, points: sparkline(runs.inside, id) }] : [])),
    ],
    ['run', (params) => view(params).detail(runs.list.summary(params.get('run') ?? ''))],
    ['series', (params) => series(runs, params)],
    ['config', (params) => view(params).config()],
    ['events', (params) => view(params).events],
    ['tokens', (params) => view(params).tokens(maybeNumber(params, 'step'))],
    ['trace', (params) => view(params).trace(maybeNumber(params, 'from'), maybeNumber(params, 'to'))],
    ['plan', (params) => view(params).planPage()],
    [
      'samples',
      (params) => {
        const { offset, limit } = read(pageQuery, params);
        return view(params).samples.page(read(sampleQuery, params), offset, limit);
      },
    ],
    [
      'sample',
      (params) => {
        const run = view(params);
        const detail = run.samples.detail(params.get('key') ?? '', (step, index) =>
          run.hasTokens(step, index),
        );
        if (detail === null) throw new RequestError(404, 'there is no such sample');
        return detail;
      },
    ],
  ]);
}

/** By run, in the order asked for; metrics that a run does not have are left out. */
function series(runs: Runs, params: URLSearchParams): { run: string; series: Series[] }[] {
  const { run: ids, name: names, ...request } = read(seriesQuery, params);
  return ids.flatMap((run) => {
    const found = runs.view(run);
    if (found === null) return [];
    return [{ run, series: names.flatMap((name) => found.series.series(name, request) ?? []) }];
  });
}

/** A metric of runs as a file: its name and its text, made as it is read. @throws RequestError */
export function csvOf(runs: Runs, params: URLSearchParams): { name: string; pieces: Iterable<string> } {
  const { run: ids, name: names, ...request } = read(csvQuery, params);
  const [name] = names as [string];
  const curves = ids.flatMap((run) => {
    const found = runs.view(run);
    return found === null ? [] : [{ run, rows: found.series.rows(name, request) }];
  });
  return { name: csvName(name), pieces: csvPieces(request.x, curves) };
}
