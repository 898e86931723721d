// How far the policy that the trainer computes is from the one that sampled.
import '../styles/pages/mismatch.css';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { RunDetail, TokensPage } from '../../../ts/ui/protocol';
import { number } from '../lib/format';
import { Empty, Fact } from '../parts/basics';
import { Chart, type View } from '../parts/chart';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';

const CHARTS = /^(training\/rollout_|rollout_corr\/|actor\/ppo_kl)/;
const SIZE = 320;

export function MismatchPage({ id, detail }: { id: string; detail: RunDetail | null }): JSX.Element {
  const [view, setView] = useState<View>({ x: 'step', smoothing: 0, log: false, range: null });
  if (detail === null) return <p class="soft">…</p>;
  const metrics = detail.metrics.filter(({ name }) => CHARTS.test(name));
  const last = (name: string): number | null => metrics.find((metric) => metric.name === name)?.last ?? null;
  if (metrics.length === 0)
    return (
      <Empty title="Nothing to compare">
        Runs of troupe train compare the probabilities of their rollouts with those of the trainer.
      </Empty>
    );
  return (
    <>
      <div class="facts">
        <Fact
          name="Mean |Δp|"
          value={number(last('training/rollout_probs_diff_mean'))}
          title="training/rollout_probs_diff_mean"
        />
        <Fact
          name="Largest |Δp|"
          value={number(last('training/rollout_probs_diff_max'))}
          title="training/rollout_probs_diff_max"
        />
        <Fact
          name="Correlation"
          value={number(last('training/rollout_actor_probs_pearson_corr'))}
          title="training/rollout_actor_probs_pearson_corr"
        />
        <Fact name="PPO KL" value={number(last('actor/ppo_kl'))} title="actor/ppo_kl" />
      </div>
      <div class="mismatch">
        <Scatter id={id} />
        <div class="charts">
          {metrics.map(({ name }) => (
            <Chart
              key={name}
              runs={[id]}
              name={name}
              view={view}
              onZoom={(range) => setView({ ...view, range })}
            />
          ))}
        </div>
      </div>
    </>
  );
}

/** Every token of the newest records: its probability where it was sampled, and where it is trained. */
function Scatter({ id }: { id: string }): JSX.Element | null {
  const stamp = useStamp([id], 'tokens');
  const { data } = useAnswer<TokensPage>('tokens', { run: id }, stamp);
  const points = (data?.records ?? []).flatMap(({ rollout_log_probs: p, old_log_probs: q, mask }) =>
    (p ?? []).flatMap((log, i): [number, number][] => {
      const other = q?.[i] ?? null;
      return log === null || other === null || mask[i] === 0 ? [] : [[Math.exp(log), Math.exp(other)]];
    }),
  );
  if (data === null || points.length === 0) return null;
  const inner = SIZE - 44;
  const place = ([p, q]: [number, number]): [number, number] => [36 + p * inner, 8 + (1 - q) * inner];
  const path = points
    .slice(0, 4000)
    .map(
      (point) =>
        `M${place(point)
          .map((one) => one.toFixed(1))
          .join(' ')}h0`,
    )
    .join('');
  return (
    <section
      class="card pad scatter"
      aria-label={`Probabilities of ${points.length} tokens of step ${data.step}`}
    >
      <h2>Tokens of step {number(data.step)}</h2>
      <svg viewBox={`0 0 ${SIZE} ${SIZE}`} aria-hidden="true">
        <rect x="36" y="8" width={inner} height={inner} fill="none" stroke="var(--line)" />
        <path d={`M36 ${8 + inner}L${36 + inner} 8`} stroke="var(--line-strong)" stroke-dasharray="4 4" />
        <path d={path} stroke="var(--accent)" stroke-width="5" stroke-linecap="round" opacity="0.55" />
        {[0, 0.5, 1].map((tick) => (
          <g key={tick} fill="var(--soft)" font-size="11">
            <text x={36 + tick * inner} y={inner + 24} text-anchor="middle">
              {tick}
            </text>
            <text x="28" y={12 + (1 - tick) * inner} text-anchor="end">
              {tick}
            </text>
          </g>
        ))}
        <text x={36 + inner / 2} y={SIZE - 4} text-anchor="middle" fill="var(--soft)" font-size="12">
          p where it was sampled
        </text>
      </svg>
      <p class="soft">Up: p in the trainer. On the line both agree.</p>
    </section>
  );
}
