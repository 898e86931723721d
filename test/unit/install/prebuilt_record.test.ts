/** The module, untyped. */
const load = () => {
  const module: string = '../../../scripts/prebuilt_record.mjs';
  return import(module);
};

const objdump = `
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5)  memcpy
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.34)   pthread_create
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.17)   clock_gettime
0000000000000000      DF *UND*  0000000000000000 (GLIBCXX_3.4.9) _ZSt16__ostream_insert
0000000000000000      DF *UND*  0000000000000000 (GLIBCXX_3.4.30) _ZSt21__glibcxx_assert_fail
0000000000000000      DF *UND*  0000000000000000 (LIBFOO_9.9)   foo
`;

describe('scripts/prebuilt_record.mjs', () => {
  it('takes the highest version of each symbol family, by number and not by letter', async () => {
    const { symbolVersions } = await load();
    expect(symbolVersions(objdump)).toEqual({ GLIBC: '2.34', GLIBCXX: '3.4.30' });
  });

  it('reads what docs/install.md states, and refuses a page that states nothing', async () => {
    const { statedVersions } = await load();
    expect(Object.keys(statedVersions()).sort()).toEqual(['CXXABI', 'GCC', 'GLIBC', 'GLIBCXX']);
    expect(() => statedVersions('no such line')).toThrow('Prebuilt addons need');
  });

  it('names every family that goes beyond what is stated', async () => {
    const { excess } = await load();
    const stated = { GLIBC: '2.34', GLIBCXX: '3.4.30' };
    expect(excess({ GLIBC: '2.9', GLIBCXX: '3.4.30' }, stated)).toEqual([]);
    expect(excess({ GLIBC: '2.35', GLIBCXX: '3.4.9', GCC: '3.0' }, stated)).toEqual([
      'it needs GLIBC_2.35, but docs/install.md states GLIBC_2.34',
      'it needs GCC_3.0, but docs/install.md states no GCC',
    ]);
  });
});
