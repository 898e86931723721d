import { explainLoadFailure } from '../../../ts/native/loader';

const located = {
  addon: '/pkg/prebuilds/linux-x64/troupe.libtorch2.13.cpu.node',
  kind: 'prebuilt' as const,
  variant: 'cpu',
  libtorch: {
    dir: '/opt/torch',
    libDir: '/opt/torch/lib',
    version: '2.13.0',
    minor: '2.13',
    variant: 'cpu',
    source: 'cache' as const,
  },
};

test.each([
  ["/lib/libm.so.6: version `GLIBC_2.38' not found (required by x)", 'newer glibc (GLIBC_2.38)'],
  ["/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", 'newer libstdc++ (GLIBCXX_3.4.32)'],
  ['libtorch_cpu.so: cannot open shared object file: No such file', 'set LD_LIBRARY_PATH=/opt/torch/lib'],
  ['libcudart.so.13: cannot open shared object file: No such file', 'CUDA build and libcudart.so.13'],
  [
    'libnuma.so.1: cannot open shared object file: No such file',
    'Install the package that provides libnuma.so.1',
  ],
  ['undefined symbol: _ZN2at6TensorE', 'compiled against another LibTorch: rebuild it'],
  ['file too short', 'Rebuild it with `npx troupe setup --rebuild`'],
])('says what to do about %s', (reason, remedy) => {
  const message = explainLoadFailure(located, reason);
  expect(message).toContain(`Cannot load ${located.addon} with LibTorch 2.13.0 (/opt/torch): ${reason}`);
  expect(message).toContain(remedy);
});
