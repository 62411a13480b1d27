"""Become a service as a cloud's operators have it: its user, and what its unit leaves it.

python -P confine.py [OPTION...] -- COMMAND...

This stands for systemd on machines without: of a unit's section [Service] it does what a process
can see (users, files, capabilities, system calls), in a mount namespace of the service's own. What
systemd does beside that (start, limits of memory) is another's; a directive that it does not know
is an error, so that no restriction is passed over by accident.
"""

import argparse
import ctypes
import errno
import grp
import os
import pwd
import resource
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_PR_SET_PDEATHSIG = 1
# What it is a part of by itself, or what a machine under systemd has beside it.
_NOT_HERE = {
    "Type", "ExecStart", "ExecStartPre", "ExecStartPost", "RuntimeDirectory",
    "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "StandardOutput", "StandardError",
    "TimeoutStartSec", "TimeoutStopSec", "WatchdogSec", "Restart", "RestartSec", "KillMode",
    "MemoryMax", "IOSchedulingClass", "IOSchedulingPriority",
}  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
_MOST_FAMILIES = 46
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_SYSTEM_CALLS = {
    "ProtectClock": ("adjtimex", "clock_adjtime", "clock_settime", "settimeofday"),
    "ProtectHostname": ("sethostname", "setdomainname"),
    "ProtectKernelLogs": ("syslog",),
    "ProtectKernelModules": ("delete_module", "finit_module", "init_module"),
}
_KNOWN = {
    "User", "Group", "UMask", "LimitNOFILE", "Nice", "ProtectSystem", "ProtectHome", "PrivateTmp",
    "PrivateDevices", "CapabilityBoundingSet", "NoNewPrivileges", "ProtectControlGroups",
    "ProtectKernelTunables", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime",
    "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute", "SystemCallArchitectures",
    *_SYSTEM_CALLS,
}  # fmt: skip


def directives(unit: Path) -> dict[str, str]:
    """Return the directives of a unit's section [Service]; of one that comes twice the last."""
    found: dict[str, str] = {}
    section = ""
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            found[name] = value.strip()
    if unknown := set(found) - _KNOWN - _NOT_HERE:
        raise SystemExit(f"{unit}: {', '.join(sorted(unknown))}: not known to {__file__}")
    return found


def _mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def _own_mounts() -> None:
    """Give this process mounts of its own; what is mounted outside later comes to it as well."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("--make-rslave", "/")


def _own_processes() -> None:
    """Go on in a child that is the first process of a namespace, and passes on its status."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare")
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    # All processes of a namespace end with its first one.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount("-t", "proc", "proc", "/proc")


def _closed(path: Path, closed: list[Path]) -> Path | None:
    """Return the topmost folder above a path that is closed, or that other users cannot enter."""
    return next((one for one in reversed(path.parents)
                 if one in closed or not one.stat().st_mode & stat.S_IXOTH), None)  # fmt: skip


def show(paths: list[Path], closed: list[Path]) -> None:
    """See to it that every user can reach some paths, also where they are in a closed folder.

    That is then an empty one, with nothing but these in it.

    :param closed: folders that are closed beside those that other users cannot enter.
    """
    wanted = list(dict.fromkeys([*paths, *(path.resolve() for path in paths)]))
    hidden = {*closed, *(found for path in wanted if (found := _closed(path, closed)))}
    # What is below another one is gone with that.
    hidden -= {one for one in hidden if hidden & set(one.parents)}
    descriptors = {path: os.open(path, os.O_PATH) for path in wanted
                   if not path.is_symlink() and _closed(path, closed) in hidden}  # fmt: skip
    links = {path: path.readlink() for path in wanted if path.is_symlink()}
    for one in hidden:
        # As the folder is: all may write to /tmp.
        mode = stat.S_IMODE(one.stat().st_mode) | 0o555
        _mount("-t", "tmpfs", "-o", f"mode={mode:o},size=64m", "tmpfs", one)
    for path in sorted(descriptors):
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-c", "--rbind", f"/proc/self/fd/{descriptors[path]}", str(path)],
            check=True, pass_fds=[descriptors[path]],
        )  # fmt: skip
    for path, target in links.items():
        if not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)


def _read_only(*places: str) -> None:
    for place in filter(os.path.isdir, places):
        _mount("--rbind", place, place)
        _mount("-o", "remount,bind,ro", place)


def _own_devices() -> None:
    new = Path(tempfile.mkdtemp(dir="/run"))
    _mount("-t", "tmpfs", "-o", "mode=755,size=64k", "tmpfs", new)
    for name in _DEVICES:
        (new / name).touch()
        _mount("--bind", f"/dev/{name}", new / name)
    for name in ("shm", "pts"):
        (new / name).mkdir()
        _mount("--rbind", f"/dev/{name}", new / name)
    for name in ("fd", "stdin", "stdout", "stderr"):
        (new / name).symlink_to(os.readlink(f"/dev/{name}"))
    _mount("--move", new, "/dev")
    new.rmdir()


def restrict_files(service: dict[str, str]) -> None:
    """Do what a unit says of files."""
    if service.get("ProtectHome") == "yes":
        for place in filter(os.path.isdir, ("/home", "/run/user")):
            _mount("-t", "tmpfs", "-o", "ro,mode=000,size=1m", "tmpfs", place)
    if service.get("PrivateDevices") == "yes":
        _own_devices()
    if service.get("ProtectControlGroups") == "yes":
        _read_only("/sys/fs/cgroup")
    if service.get("ProtectKernelTunables") == "yes":
        _read_only("/proc/sys", "/sys")
    if service.get("ProtectSystem") in ("full", "strict"):
        # What "strict" has beyond that depends on where the folders of a service are.
        _read_only("/usr", "/boot", "/efi", "/etc")


def restrict_system_calls(service: dict[str, str]) -> None:
    """Do what a unit says of system calls; it holds for all that this process starts."""
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    refused = seccomp.ERRNO(errno.EPERM)
    for directive, names in _SYSTEM_CALLS.items():
        for name in names if service.get(directive) == "yes" else ():
            rules.add_rule(refused, name)
    if families := service.get("RestrictAddressFamilies"):
        allowed = {_FAMILIES[name] for name in families.split()}
        for family in set(range(_MOST_FAMILIES)) - allowed:
            rules.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket",
                           seccomp.Arg(0, seccomp.EQ, family))  # fmt: skip
    if service.get("RestrictNamespaces") == "yes":
        rules.add_rule(refused, "setns")
        # Its flags are in memory, where a filter does not see them.
        rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
        for flag in _NEW_NAMESPACES:
            for name in ("clone", "unshare"):
                rules.add_rule(refused, name, seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    if service.get("RestrictRealtime") == "yes":
        for policy in (os.SCHED_FIFO, os.SCHED_RR):
            rules.add_rule(refused, "sched_setscheduler", seccomp.Arg(1, seccomp.EQ, policy))
    if service.get("RestrictSUIDSGID") == "yes":
        for name, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1),
                            ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)):  # fmt: skip
            for bit in (stat.S_ISUID, stat.S_ISGID):
                rules.add_rule(refused, name, seccomp.Arg(place, seccomp.MASKED_EQ, bit, bit))
    if service.get("LockPersonality") == "yes":
        rules.add_rule(refused, "personality", seccomp.Arg(0, seccomp.NE, 0))
    if service.get("MemoryDenyWriteExecute") == "yes":
        rules.add_rule(refused, "mmap", seccomp.Arg(2, seccomp.MASKED_EQ, 6, 6))
        for name in ("mprotect", "pkey_mprotect"):
            rules.add_rule(refused, name, seccomp.Arg(2, seccomp.MASKED_EQ, 4, 4))
    rules.load()


def _numbers(user: str, group: str, groups: list[str]) -> list[str]:
    ids = sorted({grp.getgrnam(name).gr_gid for name in groups})
    return [f"--reuid={pwd.getpwnam(user).pw_uid}", f"--regid={grp.getgrnam(group).gr_gid}",
            f"--groups={','.join(map(str, ids))}" if ids else "--clear-groups"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit", type=Path, help="whose restrictions it has")
    parser.add_argument("--user", help="of a service without a unit of ours")
    parser.add_argument("--groups", default="", help="more of them, separated by commas")
    parser.add_argument("--show", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--close", type=Path, action="append", default=[], metavar="PATH",
                        help="a folder of which it sees only what is shown")
    parser.add_argument("--pid", action="store_true", help="with process numbers of its own")
    parser.add_argument("--bind", action="append", default=[], metavar="SOURCE=TARGET")
    parser.add_argument("--mount", action="append", default=[], metavar="DEVICE=TARGET")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    service = directives(options.unit) if options.unit else {}
    user = options.user or service.get("User")
    group = options.user or service.get("Group") or user
    here = os.getcwd()
    _own_mounts()
    # A cloud may be in one of these.
    private = ["/tmp", "/var/tmp"] if service.get("PrivateTmp") == "yes" else []
    show(options.show, [*options.close, *map(Path, private)])
    os.chdir(here)
    for kind, pairs in (("--bind", options.bind), ("--types=xfs", options.mount)):
        for source, _, target in (pair.partition("=") for pair in pairs):
            _mount(kind, source, target)
    if options.pid:
        _own_processes()
    restrict_files(service)
    command = list(options.command)
    if user and group:
        bounds = service.get("CapabilityBoundingSet") == ""
        command = [
            "setpriv", *_numbers(user, group, [name for name in options.groups.split(",") if name]),
            # The kernel forgets with a change of user that it ends with the one that started it.
            *(["--pdeathsig=KILL"] if options.pid else []),
            *(["--bounding-set=-all", "--inh-caps=-all"] if bounds else []),
            *(["--no-new-privs"] if service.get("NoNewPrivileges") == "yes" else []), "--",
            *command]  # fmt: skip
    if limit := service.get("LimitNOFILE"):
        # A container's root may have no more to give.
        most = min(int(limit), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(int(service.get("UMask", "0022"), 8))
    os.nice(int(service.get("Nice", "0")))
    if options.unit:
        restrict_system_calls(service)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
