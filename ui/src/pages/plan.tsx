// The memory that was planned for each rank, and the most that was measured.
import '../styles/pages/plan.css';
import type { JSX } from 'preact';
import type { PlanPage as Answer } from '../../../ts/ui/protocol';
import { bytes, number, plural } from '../lib/format';
import { Empty, Problem } from '../parts/basics';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';

const PARTS: readonly [string, string, number][] = [
  ['process', 'process', 7],
  ['parameters', 'parameters', 0],
  ['gradients', 'gradients', 3],
  ['optimizer', 'optimizer', 5],
  ['gathered', 'gathered', 2],
  ['activations', 'activations', 1],
  ['head', 'head', 4],
  ['kvCache', 'KV cache', 6],
];

export function PlanPage({ id }: { id: string }): JSX.Element {
  const stamp = useStamp([id], 'trace');
  const { data, error } = useAnswer<Answer>('plan', { run: id }, stamp);
  if (error !== null && data === null) return <Problem text={error} />;
  if (data === null) return <p class="soft">…</p>;
  if (data.plan === null)
    return (
      <Empty title="No plan">
        Runs write <code>plan.json</code> as they begin.
      </Empty>
    );
  return (
    <>
      {data.plan.pools.map((pool) => (
        <Pool
          key={pool.name}
          pool={pool}
          measured={data.measured.filter((one) => one.pool === pool.name || data.plan?.pools.length === 1)}
        />
      ))}
    </>
  );
}

type PoolPlan = NonNullable<Answer['plan']>['pools'][number];

function Pool({ pool, measured }: { pool: PoolPlan; measured: Answer['measured'] }): JSX.Element {
  const measuredOf = (one: Answer['measured'][number]): number =>
    pool.device === 'cpu' ? one.peakRss : one.maxAllocated;
  const most = Math.max(pool.peak.total, pool.memory ?? 0, ...measured.map(measuredOf)) * 1.04;
  const percent = (value: number): string => `${((100 * value) / most).toFixed(2)}%`;
  const largest = Math.max(0, ...measured.map(measuredOf));
  const error = largest > 0 ? pool.peak.total / largest - 1 : null;
  return (
    <section class="plan">
      <div class="head">
        <h1>{pool.name ? `Pool ${pool.name}` : 'Memory of a rank'}</h1>
        <span class="soft">
          {plural(pool.worldSize, 'rank')} on {pool.device}
          {pool.memory === null ? '' : `, ${bytes(pool.memory)} each`}
        </span>
      </div>
      <div class="facts">
        <div>
          <div class="name">Planned peak</div>
          <div class="value num">{bytes(pool.peak.total)}</div>
          <div class="soft">
            {pool.peak.verb} of the {pool.peak.role}
          </div>
        </div>
        <div>
          <div class="name">Most measured</div>
          <div class="value num">{largest > 0 ? bytes(largest) : '–'}</div>
          <div class="soft">{pool.device === 'cpu' ? 'resident set' : 'allocated on the device'}</div>
        </div>
        <div>
          <div class="name">Plan over measured</div>
          <div class="value num">
            {error === null ? '–' : `${error >= 0 ? '+' : ''}${number(Math.round(error * 1000) / 10)} %`}
          </div>
          <div class="soft">of the largest rank</div>
        </div>
      </div>
      <div class="card pad">
        <div class="legend">
          {PARTS.filter(([key]) => pool.phases.some(({ memory }) => (memory[key] ?? 0) > 0)).map(
            ([key, title, color]) => (
              <span key={key}>
                <i class="swatch" style={{ background: `var(--series-${color})` }} />
                {title}
              </span>
            ),
          )}
        </div>
        {pool.phases.map(({ role, verb, total, memory }) => (
          <div class="plan-row" key={`${role}/${verb}`}>
            <span class="plan-name">
              {verb} <span class="soft">{role}</span>
            </span>
            <span class="plan-bar" role="img" aria-label={`${verb} of the ${role}: ${bytes(total)} planned`}>
              {PARTS.map(([key, title, color]) => (
                <i
                  key={key}
                  title={`${title}: ${bytes(memory[key] ?? 0)}`}
                  style={{
                    width: percent(memory[key] ?? 0),
                    background: `var(--series-${color})`,
                  }}
                />
              ))}
            </span>
            <span class="num plan-sum">{bytes(total)}</span>
          </div>
        ))}
        {measured.map((one) => (
          <div class="plan-row measured" key={`${one.pool}/${one.rank}`}>
            <span class="plan-name">
              measured <span class="soft">rank {one.rank}</span>
            </span>
            <span
              class="plan-bar"
              role="img"
              aria-label={`rank ${one.rank}: ${bytes(measuredOf(one))} measured`}
            >
              <i style={{ width: percent(measuredOf(one)) }} />
            </span>
            <span class="num plan-sum">{bytes(measuredOf(one))}</span>
          </div>
        ))}
      </div>
    </section>
  );
}
