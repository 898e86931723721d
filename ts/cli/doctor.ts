import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism, freemem, totalmem } from 'node:os';
import { listAddons } from '../install/addons';
import { discoverLibTorch } from '../install/discovery';
import { missingLibraries } from '../install/fetch';
import { packageRoot, packageVersion } from '../install/package_root';
import { checkPrerequisites } from '../install/prerequisites';
import { type LocatedAddon, locateAddon } from '../native/loader';

/** Longest wait for a tool's answer. */
const ANSWER_MS = 30_000;

export type Severity = 'ok' | 'info' | 'warning' | 'problem';

export interface DoctorItem {
  name: string;
  severity: Severity;
  /** What was found. */
  found: string;
  /** What to do; null unless there is something to do. */
  fix: string | null;
}

export interface DoctorReport {
  /** True when a model can be trained on this machine as it is: no item is a problem. */
  ok: boolean;
  items: DoctorItem[];
}

/** Looks at everything that the native core depends on; changes nothing and loads native code only in a child process. */
export async function doctor(): Promise<DoctorReport> {
  const located = tryLocate();
  const loaded = probe(located);
  const torch = libtorch();
  const items: DoctorItem[] = [
    item('troupe', 'info', `${packageVersion()} at ${packageRoot}`),
    ...tools(typeof located !== 'string', torch.severity === 'ok'),
    systemLibraries(),
    processor(),
    memory(),
    torch,
    addon(located),
    loaded.item,
    device(loaded.info),
  ];
  return { ok: items.every((entry) => entry.severity !== 'problem'), items };
}

/** `troupe doctor`: prints the report; exit code 0 when all is well, else 1. `further`: what else is looked at when this machine has all. */
export async function runDoctor(
  options: { log?: (line: string) => void; further?: () => Promise<DoctorItem[]> } = {},
): Promise<number> {
  const log = options.log ?? ((line: string) => console.log(line));
  const own = await doctor();
  const items = own.ok ? [...own.items, ...((await options.further?.()) ?? [])] : own.items;
  const report = { ok: items.every(({ severity }) => severity !== 'problem'), items };
  const width = Math.max(...report.items.map((entry) => entry.name.length));
  const marks: Record<Severity, string> = { ok: 'ok  ', info: '    ', warning: 'warn', problem: 'FAIL' };
  for (const entry of report.items) {
    log(`${marks[entry.severity]}  ${entry.name.padEnd(width)}  ${entry.found}`);
    if (entry.fix !== null) log(`${' '.repeat(width + 8)}-> ${entry.fix}`);
  }
  log(report.ok ? 'Everything that Troupe needs is here.' : 'Something is missing: see FAIL above.');
  return report.ok ? 0 : 1;
}

function item(name: string, severity: Severity, found: string, fix: string | null = null): DoctorItem {
  return { name, severity, found, fix };
}

/** Build tools are a problem only while there is no addon, Python only while there is no LibTorch; afterwards a missing one is worth a warning. */
function tools(haveAddon: boolean, haveLibTorch: boolean): DoctorItem[] {
  const items = checkPrerequisites().map(({ name, ok, found, fix }) => {
    const done = name === 'python' ? haveAddon || haveLibTorch : name !== 'node' && haveAddon;
    const severity: Severity = done ? 'warning' : 'problem';
    return ok ? item(name, 'ok', found) : item(name, severity, found, fix);
  });
  const npm = commandOutput('npm', ['--version']);
  items.splice(
    1,
    0,
    npm
      ? item('npm', 'ok', `npm ${npm}`)
      : item('npm', 'warning', 'npm does not run', 'It comes with Node.js.'),
  );
  return items;
}

function systemLibraries(): DoctorItem {
  const header = (process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined)
    ?.header;
  const glibc = header?.glibcVersionRuntime;
  if (!glibc) {
    return item(
      'libc',
      'problem',
      'this Node.js does not run on glibc',
      'LibTorch is built for glibc: use a glibc-based Linux.',
    );
  }
  return item('libc', 'ok', `glibc ${glibc}${libstdcxx()}`);
}

/** ', GLIBCXX up to 3.4.30' of the libstdc++ that the dynamic linker would take. */
function libstdcxx(): string {
  const cache = commandOutput('/sbin/ldconfig', ['-p']) ?? '';
  const file = /libstdc\+\+\.so\.6 .*=> (\S+)/.exec(cache)?.[1];
  if (!file) return '';
  const versions = [...readFileSync(file, 'latin1').matchAll(/GLIBCXX_(\d+\.\d+\.\d+)/g)].map(
    (match) => match[1] as string,
  );
  const newest = versions.sort((a, b) => a.localeCompare(b, 'en', { numeric: true })).at(-1);
  return newest ? `, GLIBCXX up to ${newest}` : '';
}

function processor(): DoctorItem {
  const text = readOrEmpty('/proc/cpuinfo');
  const model = /^model name\s*:\s*(.*)$/m.exec(text)?.[1] ?? process.arch;
  const flags = /^flags\s*:\s*(.*)$/m.exec(text)?.[1]?.split(' ') ?? [];
  const sets = ['avx2', 'avx512f', 'avx512_bf16', 'amx_bf16'].filter((flag) => flags.includes(flag));
  const found = `${model}, ${availableParallelism()} cores, ${sets.length > 0 ? sets.join(' ') : 'no AVX2'}`;
  return item('cpu', 'info', found);
}

function memory(): DoctorItem {
  const available = /^MemAvailable:\s+(\d+) kB/m.exec(readOrEmpty('/proc/meminfo'))?.[1];
  const free = available ? Number(available) * 1024 : freemem();
  const found = `${gib(free)} available of ${gib(totalmem())}`;
  if (free >= 2 * 2 ** 30) return item('memory', 'ok', found);
  return item(
    'memory',
    'warning',
    found,
    'Compiling the addon takes about 1.5 GB per job; free some memory.',
  );
}

function libtorch(): DoctorItem {
  const fix = 'Run `npx troupe setup`, or set TROUPE_LIBTORCH to a LibTorch or a Python torch directory.';
  try {
    const { found, notes } = discoverLibTorch();
    const [torch] = found;
    if (!torch) return item('libtorch', 'problem', notes.join(' '), fix);
    const described = `${torch.version} (${torch.variant}) at ${torch.dir}, found by ${torch.source}`;
    const missing = missingLibraries(torch);
    if (missing.length === 0) return item('libtorch', 'ok', described);
    return item(
      'libtorch',
      'problem',
      `${described}, but ${missing.join(', ')} cannot be found`,
      'Install them, or fetch a CPU build of torch (docs/install.md).',
    );
  } catch (error) {
    return item('libtorch', 'problem', (error as Error).message, fix);
  }
}

function tryLocate(): LocatedAddon | string {
  try {
    return locateAddon();
  } catch (error) {
    return (error as Error).message;
  }
}

function addon(located: LocatedAddon | string): DoctorItem {
  if (typeof located === 'string') {
    const there = listAddons().map((entry) => `${entry.file} (LibTorch ${entry.minor ?? 'unknown'})`);
    const found =
      there.length > 0 ? `none fits; there are ${there.join(', ')}` : 'none, neither built nor prebuilt';
    return item('addon', 'problem', found, 'Run `npx troupe setup`.');
  }
  return item('addon', 'ok', `${located.addon} (${located.kind}, LibTorch ${located.libtorch.minor})`);
}

/** What the addon says of itself, as far as the doctor needs it. */
export interface AddonInfo {
  libtorch: string;
  cuda: boolean;
  deviceCount: number;
  threads: number;
}

/** Loads the addon in a child: a driver or a library that crashes takes only the child with it. */
function probe(located: LocatedAddon | string): { item: DoctorItem; info: AddonInfo | null } {
  if (typeof located === 'string') return { item: item('loading', 'info', 'not tried'), info: null };
  const program = 'console.log(JSON.stringify(require(process.argv[1]).buildInfo()))';
  const path = [located.libtorch.libDir, process.env['LD_LIBRARY_PATH']].filter(Boolean).join(':');
  const run = spawnSync(process.execPath, ['-e', program, located.addon], {
    encoding: 'utf8',
    env: { ...process.env, LD_LIBRARY_PATH: path },
  });
  const fix = 'Rebuild it with `npx troupe setup --rebuild`.';
  if (run.status !== 0) {
    const reason = run.signal
      ? `it crashed with ${run.signal}`
      : (/Error: (.*)/.exec(run.stderr)?.[1] ?? run.stderr.trim());
    return { item: item('loading', 'problem', `the addon does not load: ${reason}`, fix), info: null };
  }
  const info = JSON.parse(run.stdout) as AddonInfo;
  const found = `built with LibTorch ${info.libtorch}, ${info.cuda ? `CUDA, ${info.deviceCount} GPUs` : 'CPU only'}, ${info.threads} threads`;
  return { item: item('loading', 'ok', found), info };
}

function device(info: AddonInfo | null): DoctorItem {
  const query = ['--query-gpu=name,driver_version,memory.total', '--format=csv,noheader'];
  return explainDevice(info, {
    cards: commandOutput('nvidia-smi', query)?.split('\n').join('; ') ?? null,
    driver: existsSync('/proc/driver/nvidia/version'),
    visible: process.env['CUDA_VISIBLE_DEVICES'] ?? null,
  });
}

/** What the system shows of NVIDIA GPUs. */
export interface GpuSigns {
  /** What nvidia-smi lists; null when it is absent or lists nothing. */
  cards: string | null;
  /** A kernel driver is loaded. */
  driver: boolean;
  /** CUDA_VISIBLE_DEVICES; null when unset. */
  visible: string | null;
}

/** Where engines run by default, and why not on a GPU. `info` is null when the addon does not load. */
export function explainDevice(info: AddonInfo | null, signs: GpuSigns): DoctorItem {
  const { cards, driver, visible } = signs;
  if (info?.cuda && info.deviceCount > 0)
    return item('gpu', 'ok', `GPU: ${cards ?? `${info.deviceCount} that CUDA sees`}`);
  if (info && !info.cuda && cards) {
    const found = `CPU, because the addon was built without CUDA; there is ${cards}`;
    return item(
      'gpu',
      'warning',
      found,
      'With nvcc and a CUDA LibTorch `npx troupe setup` builds one with CUDA (docs/cuda.md).',
    );
  }
  if (!info?.cuda)
    return item('gpu', 'info', cards ?? 'CPU: no NVIDIA GPU (nvidia-smi is absent or sees none)');
  if (visible !== null && (cards || driver)) {
    const found = `CPU, because CUDA_VISIBLE_DEVICES='${visible}' leaves the addon no GPU`;
    return item('gpu', 'warning', found, 'Unset it, or name a GPU that nvidia-smi lists.');
  }
  if (!driver && !cards)
    return item('gpu', 'info', 'CPU: the addon has CUDA, but no NVIDIA driver is loaded here');
  return item(
    'gpu',
    'warning',
    `CPU, because CUDA finds no usable GPU${cards ? ` although there is ${cards}` : ''}`,
    'The driver may be older than the CUDA of this LibTorch (nvidia-smi shows the newest CUDA it supports).',
  );
}

function commandOutput(program: string, args: string[]): string | null {
  // A driver that hangs is a finding, too.
  const run = spawnSync(program, args, { encoding: 'utf8', timeout: ANSWER_MS });
  return run.status === 0 ? run.stdout.trim() : null;
}

function readOrEmpty(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
