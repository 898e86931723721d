// Dark or light: as the system says, unless somebody has chosen here.
import { useEffect, useState } from 'preact/hooks';

export type Theme = 'light' | 'dark';
const KEY = 'troupe-theme';
const system = matchMedia('(prefers-color-scheme: dark)');

function chosen(): Theme | null {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'light' || value === 'dark' ? value : null;
  } catch {
    return null;
  }
}

export const themeNow = (): Theme => chosen() ?? (system.matches ? 'dark' : 'light');

function apply(): void {
  document.documentElement.dataset['theme'] = themeNow();
}
apply();

const listeners = new Set<() => void>();
function tell(): void {
  apply();
  for (const listener of listeners) listener();
}
system.addEventListener('change', tell);

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(themeNow);
  useEffect(() => {
    const changed = (): void => setTheme(themeNow());
    listeners.add(changed);
    return () => {
      listeners.delete(changed);
    };
  }, []);
  const toggle = (): void => {
    try {
      localStorage.setItem(KEY, themeNow() === 'dark' ? 'light' : 'dark');
    } catch {
      // Then it lasts as long as the system's choice.
    }
    tell();
  };
  return [theme, toggle];
}

/** A colour of the style sheet. */
export const cssColor = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const seriesColor = (index: number): string => cssColor(`series-${index % 8}`);
