"""AppArmor's and SELinux's rules in etc/ are what their compilers take, and name paths that are.

No machine here enforces them: what they forbid, or keep from working, is not tried."""

import pathlib
import re
import subprocess

import pytest
from oslo_config import cfg

from glance_bootcache import conf as glance_conf
from nova_bootcache import conf as nova_conf

TOP = pathlib.Path(__file__).resolve().parents[2]
PROFILES = sorted((TOP / 'etc' / 'apparmor').iterdir())
MODULE = TOP / 'etc' / 'selinux' / 'bootcache.te'
UNITS = sorted((TOP / 'etc' / 'systemd').iterdir())
# Of AppArmor itself.
TUNABLES = {'pid', 'PROC', 'multiarch'}
CONTEXTS = TOP / 'etc' / 'selinux' / 'bootcache.fc'


def aaglob(pattern, path):
    """Tell whether a rule's path matches; of AppArmor's patterns those that the rules have."""
    pieces = re.split(r'(\{[^}]*\}|\*\*|\*)', pattern)
    return re.fullmatch(''.join(
        {'**': '.*', '*': '[^/]*'}.get(piece) or (
            '(' + '|'.join(re.escape(one).replace(r'\*', '[^/]*') for one in piece[1:-1].split(','))
            + ')' if piece.startswith('{') else re.escape(piece))
        for piece in pieces), path) is not None


def parsed(path):
    """Have AppArmor's compiler read a file; -Q: into no kernel."""
    return subprocess.run(['apparmor_parser', '-Q', '-K', str(path)], capture_output=True,
                          text=True, check=False)


def compiled(path, directory):
    return subprocess.run(
        ['checkmodule', '-M', '-m', '-o', f'{directory}/bootcache.mod', str(path)],
        capture_output=True, text=True, check=False)


@pytest.mark.parametrize('path', PROFILES, ids=lambda path: path.name)
def test_profiles_of_apparmor(path):
    done = parsed(path)
    assert done.returncode == 0, done.stderr


def test_one_that_is_none_is_refused(tmp_path):
    path = tmp_path / 'wrong'
    path.write_text(PROFILES[0].read_text().replace('network inet stream,', 'network inet stream'))
    assert parsed(path).returncode != 0


def test_the_module_of_selinux(tmp_path):
    done = compiled(MODULE, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_type_that_is_not_known_is_refused(tmp_path):
    path = tmp_path / 'wrong.te'
    path.write_text(MODULE.read_text().replace('type svirt_t;', ''))
    done = compiled(path, tmp_path)
    assert done.returncode != 0 and 'svirt_t' in done.stderr


def test_contexts_are_of_types_that_the_module_has():
    known = set(re.findall(r'^type (\w+);', MODULE.read_text(), re.M))
    lines = [line for line in CONTEXTS.read_text().splitlines() if not line.startswith('#')]
    named = [re.fullmatch(r'\S+\t(?:--\t)?system_u:object_r:(\w+):s0', line) for line in lines]
    assert len(lines) == 8 and all(named)
    assert {match[1] for match in named} <= known


@pytest.mark.parametrize('unit', UNITS, ids=lambda path: path.stem)
def test_each_unit_has_rules_that_know_its_program_and_its_folders(unit):
    """Also one that came later than the rules."""
    text = unit.read_text()
    profiles = [path.read_text() for path in PROFILES
                if f'systemctl edit {unit.stem}"' in path.read_text()]
    assert len(profiles) == 1, 'a profile says that it is for it'
    assert re.search(rf'\b{unit.stem}\b', MODULE.read_text()) or unit.stem == 'glance-bootcache'
    program = re.search(r'^ExecStart=(\S+)', text, re.M)[1]
    profile = re.sub(r'@\{(\w+)\}', lambda name: re.search(
        rf'^@\{{{name[1]}\}}=(\S+)$', profiles[0], re.M)[1] if name[1] not in TUNABLES
        else name[0], profiles[0])
    assert any(aaglob(pattern, program) for pattern in re.findall(
        r'^  (/\S+) \w*[mx]\w*(?: -> \S+)?,$', profile, re.M)), program
    if 'Type=notify' in text:
        assert '\n  /run/systemd/notify w,\n' in profile, 'systemd waits for it'
        assert 'allow bootcache_t init_t:unix_dgram_socket sendto;' in MODULE.read_text()
    for kind, place in (('Runtime', '/run'), ('State', '/var/lib')):
        for name in re.findall(rf'^{kind}Directory=(\S+)$', text, re.M):
            assert re.search(rf'^  owner {place}/{name}/{{,\*\*}} rw', profile, re.M), name
            assert f'\n{place}/{name}(/.*)?\t' in CONTEXTS.read_text(), name


@pytest.mark.parametrize('profile, program', [
    ('glance-bootcache', 'rbd'), ('glance-bootcache', 'rados'), ('glance-bootcache', 'ceph'),
    ('glance-bootcache', 'qemu-img'), ('glance-bootcache', 'qemu-io'),
    ('glance-bootcache', 'qemu-storage-daemon'), ('glance-bootcache', 'nice'),
    ('glance-bootcache', 'ionice'), ('glance-bootcache', 'setpriv'), ('glance-bootcache', 'env')])
def test_what_the_storage_service_starts_it_may_start(profile, program):
    rules = (TOP / 'etc' / 'apparmor' / profile).read_text()
    assert any(aaglob(pattern, f'/usr/bin/{program}') for pattern in re.findall(
        r'^  (/\S+) \w*x(?: -> \S+)?,$', rules, re.M))


@pytest.mark.parametrize('register, names, profile', [
    (glance_conf.register_opts, ('state_dir', 'run_dir'), 'glance-bootcache'),
    (nova_conf.register_opts, ('gateway_run_dir',), 'bootcache-gateway'),
    (nova_conf.register_opts, ('gateway_run_dir',), 'bootcache-connectors')])
def test_they_name_the_directories_that_options_do(register, names, profile):
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    register(conf)
    rules = (TOP / 'etc' / 'apparmor' / profile).read_text()
    for name in names:
        path = conf.bootcache[name]
        assert re.search(rf'^@\{{\w+\}}={path}$', rules, re.M), name
        assert f'\n{path}(/.*)?\t' in CONTEXTS.read_text(), name


@pytest.mark.parametrize('path', [*PROFILES, MODULE], ids=lambda path: path.name)
def test_they_say_that_they_are_untried(path):
    assert 'UNTRIED' in path.read_text().splitlines()[0] + path.read_text().splitlines()[1]


def profiles(text):
    """Return the profiles of a file, child profiles as ``parent//child``: path rules by path."""
    found, within = {}, []
    for line in text.splitlines():
        if started := re.match(r' *profile (\S+) \{', line):
            within.append(started[1])
        elif re.match(r' *\}$', line):
            within.pop()
        elif within and (rule := re.match(r' +(?:owner )?([/@]\S*) ([a-zA-Z]+)(?: -> (\S+))?,$',
                                          line)):
            found.setdefault('//'.join(within), {})[rule[1]] = rule[2], rule[3] or ''
    return found


def expanded(path):
    """Return what a rule's path stands for, without braces: a variable's name is a folder."""
    path = re.sub(r'@\{(\w+)\}', r'/\1', path)
    if (found := re.search(r'\{([^}]*)\}', path)) is None:
        return [path]
    return [each for one in found[1].split(',')
            for each in expanded(path[:found.start()] + one + path[found.end():])]


def allows(rules, path, right):
    known = [each for name, (rights, _target) in rules.items() if right in rights
             for each in expanded(name)]
    return all(any(name == wanted or aaglob(name, wanted) for name in known)
               for wanted in expanded(path))


def test_what_no_new_privileges_forbids_is_asked_of_no_profile():
    """The units set it: a confined process starts others under its own profile, or one more."""
    assert all('\nNoNewPrivileges=yes\n' in unit.read_text() for unit in UNITS)
    stacked = []
    for path in PROFILES:
        found = profiles(path.read_text())
        for rules in found.values():
            for rights, target in rules.values():
                if 'x' not in rights:
                    continue
                if not target:
                    assert rights.endswith('ix') and 'P' not in rights and 'C' not in rights
                    continue
                # Without "i" the kernel looks for a profile that is attached to the program, too.
                assert rights.endswith('Pix') and target.startswith('&') and target[1:] in found
                stacked.append((rules, found[target[1:]]))
    assert len(stacked) == 3
    # Both hold: what the second one allows is of no use where the first one does not.
    for first, second in stacked:
        for path, (rights, _target) in second.items():
            for right in set(rights) - {'i'}:
                assert allows(first, path, right), (path, right)


def test_the_compiler_makes_stacks_of_the_right_names():
    """With "Cix" it would make the parent's own name a part of the path, and take it."""
    done = subprocess.run(['apparmor_parser', '-Q', '-K', '-S', str(TOP / 'etc' / 'apparmor'
                                                                    / 'glance-bootcache')],
                          capture_output=True, check=True)
    table = re.findall(rb'\0([&\w/-]*&[&\w/-]+)\0', done.stdout)
    assert sorted(table) == [b'&bootcache-exporter', b'&glance-bootcache//ceph',
                             b'&glance-bootcache//image']


def test_what_the_gateways_unit_runs_around_it_the_profile_allows():
    rules = profiles((TOP / 'etc' / 'apparmor' / 'bootcache-gateway').read_text())
    for program in ('rm', 'sh', 'dash', 'sleep', 'chmod'):
        for right in 'rmx':
            assert allows(rules['bootcache-gateway'], f'/usr/bin/{program}', right), program


def test_who_has_the_network_and_the_certificates_has_no_file_of_servers():
    """And the other way round, on a compute host."""
    gateway, connectors = ((TOP / 'etc' / 'apparmor' / f'bootcache-{name}').read_text()
                           for name in ('gateway', 'connectors'))
    for rule in '  network inet stream,\n', '  /etc/pki/{,**} r,\n', 'abstractions/nameservice':
        assert rule in connectors and rule not in gateway
    assert '@{nova_instances}' in gateway and '@{nova_instances}' not in connectors
    module = MODULE.read_text()
    for kind, domain in (('cert_t', 'bootcache_connectors_t'),
                         ('port_t', 'bootcache_connectors_t'),
                         ('bootcache_cache_t', 'bootcache_gateway_t')):
        sources = {name for source, target in re.findall(
            r'^allow (\{[^}]*\}|\w+) (\{[^}]*\}|\w+):', module, re.M)
            if kind in target for name in re.findall(r'\w+', source)}
        assert sources & {'bootcache_connectors_t', 'bootcache_gateway_t'} == {domain}, kind


def test_selinux_allows_each_domain_the_ports_of_its_peers():
    """By the names that the policies of Fedora and Debian have for them."""
    found = {}
    for source, target, rights in re.findall(
            r'^\s*allow (\w+) (\{[^}]*port_t[^}]*\}|\w*port_t):tcp_socket (\{[^}]*\}|\w+);',
            MODULE.read_text(), re.M):
        for right in re.findall(r'\w+', rights):
            found.setdefault((source, right), set()).update(re.findall(r'\w+', target))
    unnamed = {'port_t', 'unreserved_port_t'}
    assert found == {
        ('bootcache_t', 'name_bind'): unnamed,
        ('bootcache_t', 'name_connect'): unnamed | {f'{name}_port_t' for name in (
            'amqp', 'mysqld', 'postgresql', 'http', 'http_cache', 'commplex_main', 'cyphesis',
            'glance', 'armtechdaemon', 'osapi_compute')},
        ('bootcache_connectors_t', 'name_connect'): {*unnamed, 'cyphesis_port_t'},
        ('bootcache_exchange_t', 'name_bind'): unnamed,
        ('bootcache_exchange_t', 'name_connect'): unnamed}


def test_selinux_lets_systemd_change_to_domains_under_no_new_privileges():
    text = MODULE.read_text()
    domains = set(re.findall(r'^typeattribute (\w+) domain;', text, re.M))
    rule = re.search(r'^allow init_t \{ ([\w ]+) \}:process2 \{ ([\w ]+) \};', text, re.M)
    assert set(rule[1].split()) == domains
    assert {'nnp_transition', 'nosuid_transition'} == set(rule[2].split())
