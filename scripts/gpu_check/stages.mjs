// What the check on a GPU does, in its order: what would end all the rest comes first, measurements last, the smallest first.
import { join } from 'node:path';

const BENCH_LINES = /^(operation|compute_|update_|generate|linear_log_prob|export_)\S*\s.*$/;
/** Peak of dense bfloat16 products, TFLOP/s, of the H100 and the H200 with SXM (their data sheets). */
const PEAK_TFLOPS = '989';
/** Programs of test/native with cases for a GPU. */
export const KERNEL_TESTS = [
  'cuda_engine',
  'cuda_kernels',
  'cuda_products',
  'cuda_vocabulary_shard',
  'linear_log_prob',
  'vocabulary_shard',
]
  .concat([
    'activation_stack',
    'gated_delta',
    'grouped_gemm',
    'paged_attention',
    'token_choices',
    'adamw',
    'comm',
  ])
  .map((name) => `${name}_test`);

const node = (...args) => [process.execPath, ...args];
const jest = (...files) => node('node_modules/jest/bin/jest.js', ...files);
const shell = (script) => ['bash', '-euo', 'pipefail', '-c', script];

/** Lines that a stage marks as its results. */
const marked = (log) =>
  log
    .split('\n')
    .filter((line) => line.startsWith('= '))
    .map((line) => line.slice(2));
const table = (log) => log.split('\n').filter((line) => BENCH_LINES.test(line));
const jestCounts = (log) => log.split('\n').filter((line) => /^(Tests|\s+●)/.test(line));

/** The kernels' programs and what they need, nothing else: linking all tests takes minutes. */
function kernelStage({ root, libtorch, device, jobs }) {
  const cuda = device === 'cuda' ? 'ON' : 'OFF';
  const build = join(root, 'build-cmake');
  const configure = ['node_modules/cmake-js/bin/cmake-js', 'configure', '--directory', root, '--out', build]
    .concat(['--config', 'Release', '--log-level', 'error', `--CDTROUPE_LIBTORCH=${libtorch}`])
    .concat(['--CDTROUPE_TESTS=ON', '--CDTROUPE_RPATH=ON', `--CDUSE_CUDA=${cuda}`]);
  const quoted = (words) => words.map((word) => `'${word}'`).join(' ');
  const pattern = `^(${KERNEL_TESTS.join('|')})$`;
  return {
    name: 'kernels',
    needs: ['doctor'],
    limit: 500,
    least: 60,
    command: shell(
      `${quoted([process.execPath, ...configure])}
       cmake --build '${build}' --parallel ${jobs} --target ${KERNEL_TESTS.join(' ')} cuda_comm_test
       ctest --test-dir '${build}' --output-on-failure --timeout 120 -R '${pattern}'`,
    ),
    // ctest counts a program that found no GPU as skipped.
    refuse: (log) => (device === 'cuda' && log.includes('***Skipped') ? 'a test found no GPU' : null),
    results: (log) =>
      log.split('\n').filter((line) => /tests passed|\*\*\*(Failed|Exception|Timeout)/.test(line)),
  };
}

/** A benchmark with its peers; what each side says is in the log as soon as it is known. */
function benchStage(device, name, limit, flags) {
  const threads = device === 'cuda' ? '8' : '2';
  const command = ['bench/run.mjs', '--peer', '--device', device, '--threads', threads, '--rounds', '1'];
  return {
    name: `bench-${name}`,
    needs: ['forward'],
    limit,
    least: Math.min(limit, 90),
    command: node(...command, ...flags),
    // The benchmark goes on without a side that died; a comparison that was not made is no success here.
    refuse: (log) =>
      table(log).some((line) => / error /.test(line)) ? 'a side of the benchmark died' : null,
    results: table,
  };
}

const COMPUTE = 'compute_log_prob,update_policy';
const sizes = (prompts, n, prompt, response) =>
  ['--prompts', prompts, '--n', n, '--prompt-len', prompt, '--response-len', response].map(String);

function cudaBenchmarks() {
  const on = (
    name,
    limit,
    preset,
    batch,
    { ops = COMPUTE, variants = 'packed', micro = 16384, more = [] } = {},
  ) =>
    benchStage('cuda', name, limit, [
      ...['--case', preset, '--dtype', 'bf16', '--variants', variants, '--micro-tokens', String(micro)],
      ...['--repeat', '3', '--peak-tflops', PEAK_TFLOPS, '--ops', ops, ...batch, ...more],
    ]);
  const all = 'compute_log_prob,compute_log_prob_entropy,update_policy,linear_log_prob';
  return [
    on('0.6b-1k', 240, 'qwen3-0.6b', sizes(8, 4, 256, 768), { ops: all, variants: 'padded,packed' }),
    on('0.6b-16k', 300, 'qwen3-0.6b', sizes(8, 1, 1024, 15360), { variants: 'packed,compile' }),
    on('0.6b-generate', 300, 'qwen3-0.6b', sizes(32, 8, 256, 768), {
      ops: 'generate',
      variants: 'padded,continuous',
      more: ['--new-tokens', '256', '--n', '8'],
    }),
    on('1.7b-16k', 420, 'qwen3-1.7b', sizes(8, 1, 1024, 15360), { variants: 'packed,compile' }),
    on('0.6b-64k', 420, 'qwen3-0.6b', sizes(2, 1, 1024, 64512), { micro: 65536 }),
    on('4b-16k', 500, 'qwen3-4b', sizes(4, 1, 1024, 15360)),
    on('7b-1k', 540, 'qwen2.5-7b', sizes(8, 4, 256, 768), { ops: 'compute_log_prob' }),
  ];
}

const cpuBenchmarks = () => [
  benchStage('cpu', 'rehearsal', 300, [
    ...['--case', 'cpu-40m', '--variants', 'packed', '--repeat', '1', '--warmup', '0', '--ops', COMPUTE],
    ...sizes(2, 2, 32, 64),
  ]),
];

/** Where time goes: on the GPU the kernels of the peer by torch's profiler, and ours where there is Nsight Systems. */
function profileStages(device) {
  const batch = device === 'cuda' ? 'qwen3-0.6b-8x4-256+768' : 'cpu-40m-2x2-32+64';
  const directory = `.troupe/bench/${batch}`;
  const dtype = device === 'cuda' ? 'bf16' : 'fp32';
  const subject = ['bench/subject.mjs', directory, '--device', device, '--dtype', dtype, '--repeat', '1'];
  const ours = [process.execPath, ...subject, '--warmup', '1', '--ops', COMPUTE]
    .map((word) => `'${word}'`)
    .join(' ');
  return [
    {
      name: 'profile-peer',
      needs: ['forward'],
      limit: 180,
      command: shell(
        `PYTHONPATH="$GPU_CHECK_PEER_PATH" "$TROUPE_PYTHON" bench/peer/profile_peer.py ${directory} --device ${device} --dtype ${dtype}`,
      ),
      results: marked,
    },
    {
      name: 'profile',
      needs: ['forward'],
      limit: 240,
      command: shell(
        `if command -v nsys >/dev/null; then
           nsys profile --force-overwrite true --trace cuda,nvtx -o "$GPU_CHECK_WORK/results/profile" ${ours}
           nsys stats --report cuda_gpu_kern_sum,cuda_api_sum "$GPU_CHECK_WORK/results/profile.nsys-rep"
         else
           echo '= no nsys here: times of the calls into the core instead'
           TROUPE_TRACE_NATIVE_CALLS=1 ${ours} 2>&1 | sed -n 's/.*\\[native #[0-9]*\\] \\(.* done in .*\\)/= \\1/p'
         fi`,
      ),
      results: (log) => marked(log).slice(-12),
    },
  ];
}

/**
 * The stages for a device.
 * @param {{ root: string, device: 'cpu' | 'cuda', libtorch: string, jobs: number }} machine libtorch: the directory that is built against
 * @returns {import('./runner.mjs').Stage[]}
 */
export function stagesFor(machine) {
  const { root, device } = machine;
  const probe = (name, what, limit, needs = ['doctor'], env = {}) => ({
    name,
    needs,
    limit,
    command: node('scripts/gpu_check/probe.mjs', what, '--device', device),
    env,
    results: marked,
  });
  const nccl = join(root, 'build-cmake', 'cuda_comm_test');
  return [
    {
      name: 'machine',
      limit: 60,
      command: shell(
        `nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/= /' || echo '= no GPU'
         echo "= $(nproc) cores, node $(node --version), $("$TROUPE_PYTHON" --version), LibTorch $TROUPE_LIBTORCH"
         nvcc --version 2>/dev/null | sed -n 's/.*release/= nvcc, release/p' || true
         "$TROUPE_PYTHON" -c 'import transformers, safetensors, numpy; print("= peers: transformers", transformers.__version__)' || echo '= no peers: transformers, safetensors or numpy is missing'`,
      ),
      results: marked,
    },
    {
      name: 'build',
      limit: 540,
      least: 30,
      command: node('scripts/gpu_check/build.mjs', '--device', device),
      product: join(root, 'build', 'gpu-check.json'),
      results: marked,
    },
    {
      name: 'doctor',
      needs: ['build'],
      limit: 90,
      command: node('dist/cli.js', 'doctor'),
      refuse: (log) => (device === 'cuda' && !/^ok .*gpu .*GPU:/m.test(log) ? 'the addon sees no GPU' : null),
      results: (log) => log.split('\n').filter((line) => /(loading|gpu) /.test(line)),
    },
    kernelStage(machine),
    probe('forward', 'forward', 180),
    probe('update', 'update', 180, ['forward']),
    {
      name: 'conformance',
      needs: ['forward'],
      limit: 400,
      least: 90,
      command: jest('test/conformance/models.test.ts', 'test/conformance/updates.test.ts'),
      env: { TROUPE_TEST_DEVICE: device },
      results: jestCounts,
    },
    probe('exactness', 'exactness', 180, ['forward']),
    device === 'cuda'
      ? { name: 'nccl', needs: ['doctor'], limit: 60, command: [nccl] }
      : { name: 'nccl', limit: 60, command: ['echo', 'NCCL is for GPUs'] },
    // Both ranks on the one GPU there is; NCCL refuses that, so they meet over Gloo.
    probe('ranks', 'ranks', 180, ['update'], device === 'cuda' ? { CUDA_VISIBLE_DEVICES: '0,0' } : {}),
    probe('generate', 'generate', 180, ['forward']),
    {
      name: 'grpo',
      needs: ['update', 'generate'],
      limit: 400,
      least: 120,
      command: node(
        ...[
          'examples/arithmetic/run.mjs',
          '--name',
          `gpu-check-${device}`,
          '--sft',
          `trainer.device=${device}`,
        ],
        ...['--sft', 'trainer.ui=false', 'trainer.ui=false', `trainer.device=${device}`],
        ...(device === 'cuda' ? [] : ['trainer.total_training_steps=2', 'trainer.test_freq=1']),
      ),
      results: (log) => log.split('\n').filter((line) => /after the SFT|steps of|^Time/.test(line)),
    },
    ...(device === 'cuda' ? cudaBenchmarks() : cpuBenchmarks()),
    ...profileStages(device),
  ];
}
