/**
 * Python that unpacks, from wheels, what the native core needs: headers, libraries and the version. Python,
 * because Node has no reader for zip archives and pip needs Python anyway. argv: target directory, wheels.
 */
export const unpackProgram = `
import os, sys, zipfile

target, wheels = sys.argv[1], sys.argv[2:]
unused = ('libtorch_python', 'libbackend_with_compiler', 'libjitbackend_test', 'libtorchbind_test')

def wanted(name):
    if name.endswith('/'):
        return False
    if name.startswith('torch/lib/'):
        return not name[len('torch/lib/'):].startswith(unused)
    if name.startswith('nvidia/'):
        return '/lib/' in name
    return name.startswith('torch/include/') or name in ('torch/version.py',) or name.endswith('.dist-info/METADATA')

try:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if wanted(m.filename)]
            total, done, shown = sum(m.file_size for m in members), 0, 0
            for member in members:
                out = os.path.realpath(os.path.join(target, member.filename))
                if not out.startswith(os.path.realpath(target) + os.sep):
                    sys.exit('unsafe path in ' + wheel + ': ' + member.filename)
                os.makedirs(os.path.dirname(out), exist_ok=True)
                with archive.open(member) as source, open(out, 'wb') as sink:
                    while block := source.read(8 << 20):
                        sink.write(block)
                        done += len(block)
                        percent = 100 * done // max(total, 1)
                        if percent >= shown + 20:
                            shown = percent - percent % 20
                            print('  %d %% of %d MB' % (shown, total >> 20), flush=True)
except (OSError, zipfile.BadZipFile) as error:
    sys.exit('%s: %s' % (type(error).__name__, error))
`;
