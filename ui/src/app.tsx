// The frame: where one is, what else there is, and the page itself.
import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import type { RunDetail } from '../../ts/ui/protocol';
import { ConfigPage } from './pages/config';
import { CurvesPage } from './pages/curves';
import { EventsPage } from './pages/events';
import { MismatchPage } from './pages/mismatch';
import { Overview } from './pages/overview';
import { PlanPage } from './pages/plan';
import { SamplesPage } from './pages/samples';
import { TimePage } from './pages/time';
import { TokensPage } from './pages/tokens';
import { Icon, Problem, StateBadge } from './parts/basics';
import { ask, type Query, useAnswer } from './state/api';
import { live, useLive, useStamp } from './state/live';
import { href, type Route, useRoute } from './state/route';
import { useTheme } from './state/theme';

const PAGES = [
  ['curves', 'Curves'],
  ['samples', 'Samples'],
  ['tokens', 'Tokens'],
  ['time', 'Time'],
  ['mismatch', 'Rollout vs training'],
  ['events', 'Events'],
  ['plan', 'Plan'],
  ['config', 'Configuration'],
] as const;

/** What compares several runs. */
const FOR_MANY: readonly string[] = ['curves', 'config'];

export function App(): JSX.Element {
  const route = useRoute();
  const { runs, page } = route;
  useEffect(() => live.watch(runs), [runs.join('\n')]);
  useEffect(() => {
    const name = PAGES.find(([id]) => id === page)?.[1] ?? 'Runs';
    document.title = runs.length > 0 ? `${name} · ${runs.join(', ')} · Troupe` : 'Runs · Troupe';
  }, [page, runs.join('\n')]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => focusMain(event)}>
        Skip to content
      </a>
      <header class="top">
        <div class="bar">
          <a class="brand" href="#/">
            <Logo /> Troupe
          </a>
          <Crumb runs={runs} />
          <div class="end">
            <Connection />
            <ThemeButton />
          </div>
        </div>
        {runs.length > 0 ? <Tabs route={route} /> : null}
      </header>
      <main id="main" tabIndex={-1}>
        {runs.length === 0 ? <Overview /> : <RunPage key={`${page}|${runs.join()}`} route={route} />}
      </main>
    </>
  );
}

/** The address is taken by the routes, so the focus is moved by hand. */
function focusMain(event: Event): void {
  event.preventDefault();
  document.getElementById('main')?.focus();
}

const Logo = (): JSX.Element => (
  <svg width="20" height="20" viewBox="0 0 16 16" aria-hidden="true">
    <rect width="16" height="16" rx="4" fill="var(--accent)" />
    <path
      d="M3 11l3-4 3 2 4-5"
      stroke="var(--on-accent)"
      stroke-width="1.8"
      fill="none"
      stroke-linecap="round"
      stroke-linejoin="round"
    />
  </svg>
);

function Crumb({ runs }: { runs: readonly string[] }): JSX.Element | null {
  const { summaries } = useLive();
  if (runs.length === 0) return null;
  const summary = runs.length === 1 ? summaries.get(runs[0] as string) : undefined;
  return (
    <>
      <span class="soft" aria-hidden="true">
        /
      </span>
      <span class="crumb mono" title={runs.join('\n')}>
        {runs.length === 1 ? runs[0] || '(this directory)' : `${runs.length} runs`}
      </span>
      {summary ? <StateBadge state={summary.state} /> : null}
    </>
  );
}

function Connection(): JSX.Element {
  const { connected } = useLive();
  return (
    <span
      class={`badge ${connected ? 'good' : 'warn'}`}
      role="status"
      title={
        connected
          ? 'What runs write appears here at once'
          : 'The server does not answer: is troupe ui still running?'
      }
    >
      <i class="dot" />
      <span class="connection-text">{connected ? 'live' : 'offline'}</span>
    </span>
  );
}

function ThemeButton(): JSX.Element {
  const [theme, toggle] = useTheme();
  return (
    <button
      type="button"
      class="icon plain"
      onClick={toggle}
      aria-label={theme === 'dark' ? 'Light colours' : 'Dark colours'}
    >
      <Icon name={theme === 'dark' ? 'sun' : 'moon'} />
    </button>
  );
}

function Tabs({ route: { page, runs } }: { route: Route }): JSX.Element {
  const shown = runs.length > 1 ? PAGES.filter(([id]) => FOR_MANY.includes(id)) : PAGES;
  const bar = useRef<HTMLElement>(null);
  // On a phone not all of them fit.
  useLayoutEffect(() => {
    const tab = bar.current?.querySelector<HTMLElement>('[aria-current]');
    if (bar.current && tab) bar.current.scrollLeft = tab.offsetLeft - bar.current.offsetLeft - 80;
  }, [page]);
  return (
    <nav class="tabs" aria-label="Pages of the run" ref={bar}>
      {shown.map(([id, title]) => (
        <a key={id} href={href(id, runs)} aria-current={id === page ? 'page' : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}

/** What is asked about the run after this is as new as this, or newer. */
async function askRun(path: string, query: Query, signal: AbortSignal): Promise<RunDetail> {
  const detail = await ask<RunDetail>(path, query, signal);
  live.answered(detail.summary.id, detail.stamp);
  return detail;
}

function RunPage({ route }: { route: Route }): JSX.Element {
  const { runs, page, params } = route;
  const id = runs[0] as string;
  const stamp = useStamp([id]);
  const { data: detail, error } = useAnswer<RunDetail>('run', { run: id }, stamp, askRun);
  useEffect(() => {
    if (detail) live.know(detail.summary);
  }, [detail]);
  if (error !== null && detail === null) return <Problem text={error} />;
  switch (page) {
    case 'samples':
      return <SamplesPage id={id} detail={detail} params={params} />;
    case 'tokens':
      return <TokensPage id={id} params={params} />;
    case 'time':
      return <TimePage id={id} detail={detail} />;
    case 'mismatch':
      return <MismatchPage id={id} detail={detail} />;
    case 'events':
      return <EventsPage id={id} detail={detail} />;
    case 'plan':
      return <PlanPage id={id} />;
    case 'config':
      return <ConfigPage runs={runs} />;
    default:
      return <CurvesPage runs={runs} detail={detail} params={params} />;
  }
}
