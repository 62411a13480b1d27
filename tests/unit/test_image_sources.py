"""Guest images' packages come from the host's own apt sources, of whichever Debian it is."""

import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
# A mirror of one's own, in apt's newer and in its older form, beside somebody else's packages.
DEB822 = """# made by the mirror.example people
Types: deb
URIs: http://mirror.example/debian
Suites: {0} {0}-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: {0}-security
Components: main
"""
ONE_LINE = """deb http://mirror.example/debian {0} main
# deb http://mirror.example/debian {0}-backports main
deb http://mirror.example/debian-security {0}-security main
deb http://packages.example/tool tool-{0} main
"""


def apt_sources(tmp_path, release, host, files):
    """Run it on a host of that release; return what it wrote, by the file's ending."""
    parts = tmp_path / 'etc' / 'apt' / 'sources.list.d'
    parts.mkdir(parents=True)
    (tmp_path / 'etc' / 'os-release').write_text(f'ID=debian\nVERSION_CODENAME={host}\n')
    for name, text in files.items():
        (parts.parent / name).write_text(text.format(host))
    script = '. tools/common.sh; . tools/images/sources.sh; apt_sources "$@"'
    done = subprocess.run(
        ['bash', '-c', script, 'bash', release, tmp_path / 'apt', tmp_path / 'etc'],
        cwd=TOP, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {path.suffix: path.read_text() for path in tmp_path.glob('apt.*')}


@pytest.mark.parametrize('host', ['bookworm', 'trixie'])
@pytest.mark.parametrize('release', ['bookworm', 'trixie'])
def test_a_release_comes_from_the_hosts_own_mirror(tmp_path, host, release):
    written = apt_sources(tmp_path, release, host, {'sources.list.d/debian.sources': DEB822})
    assert list(written) == ['.sources']
    assert f'Suites: {release} {release}-updates\n' in written['.sources']
    assert f'Suites: {release}-security\n' in written['.sources']
    assert written['.sources'].count('http://mirror.example/') == 2


def test_sources_of_others_are_left_out(tmp_path):
    written = apt_sources(tmp_path, 'bookworm', 'trixie', {
        'sources.list': ONE_LINE,
        'sources.list.d/tool.list': 'deb http://x.example/ tool-{0} main\n',
        'sources.list.d/node.sources': DEB822.format('nodistro')})
    assert written == {
        '.list': 'deb http://mirror.example/debian bookworm main\n'
                 'deb http://mirror.example/debian-security bookworm-security main\n'}


def test_a_host_without_sources_of_its_release_is_told(tmp_path):
    with pytest.raises(AssertionError, match='error: no apt source of the host has trixie'):
        apt_sources(tmp_path, 'trixie', 'trixie', {'sources.list': '# nothing\n'})
