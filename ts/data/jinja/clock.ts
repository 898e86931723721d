// strftime_now(format) of chat templates: the time now, as Python's strftime writes it in the C locale.

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

const two = (n: number): string => String(n).padStart(2, '0');

const FORMATS: Readonly<Record<string, (date: Date) => string>> = {
  Y: (date) => String(date.getFullYear()),
  y: (date) => two(date.getFullYear() % 100),
  m: (date) => two(date.getMonth() + 1),
  B: (date) => MONTHS[date.getMonth()] as string,
  b: (date) => (MONTHS[date.getMonth()] as string).slice(0, 3),
  d: (date) => two(date.getDate()),
  A: (date) => DAYS[date.getDay()] as string,
  a: (date) => (DAYS[date.getDay()] as string).slice(0, 3),
  H: (date) => two(date.getHours()),
  I: (date) => two(date.getHours() % 12 || 12),
  p: (date) => (date.getHours() < 12 ? 'AM' : 'PM'),
  M: (date) => two(date.getMinutes()),
  S: (date) => two(date.getSeconds()),
  '%': () => '%',
};

/** @throws for a directive that is not known here */
export function strftime(date: Date, format: string): string {
  return format.replace(/%-?(.?)/gs, (directive, letter: string) => {
    const known = Object.hasOwn(FORMATS, letter) ? FORMATS[letter] : undefined;
    if (known === undefined) throw new Error(`strftime_now: ${directive} is not supported`);
    const value = known(date);
    return directive.startsWith('%-') ? value.replace(/^0(?=.)/, '') : value;
  });
}
