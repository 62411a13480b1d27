"""Programs that work on what tenants made: run under limits, and what their end tells.

A program that is over its limit of CPU time is ended by SIGXCPU, and by nothing else; the kernel
sends SIGKILL as well where memory is short, and service managers send others. So who asks can tell
a file that costs too much from a machine that had no room.
"""

import dataclasses
import signal

# Nobody comes to it, as SIGXCPU ends a program before.
_BEYOND_SECONDS = 10
_BLOCK = 512
# A shell that cannot set a limit, or start the program, ends with these.
_NOT_BEGUN = frozenset({126, 127})
_SCRIPT = ('{ ulimit -v "$1" && { [ "$2" = - ] || ulimit -n "$2"; } &&'
           ' { [ "$3" = - ] || ulimit -f "$3"; } && ulimit -t "$4" && ulimit -S -t "$5"; }'
           ' || exit 126; shift 5; exec "$@"')


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may take.

    :ivar cpu_seconds: of CPU time.
    :ivar memory_bytes: of address space.
    :ivar files: that it may have open; None for no other limit than there is.
    :ivar file_bytes: that it may write into a file; None likewise.
    """

    cpu_seconds: int
    memory_bytes: int
    files: int | None = None
    file_bytes: int | None = None


def command(limits: Limits, *arguments: str) -> list[str]:
    """Return the command that runs another one under limits, in the same process. Pure."""
    return ['sh', '-c', _SCRIPT, 'sh', str(limits.memory_bytes >> 10),
            '-' if limits.files is None else str(limits.files),
            '-' if limits.file_bytes is None else str(limits.file_bytes // _BLOCK),
            str(limits.cpu_seconds + _BEYOND_SECONDS), str(limits.cpu_seconds), *arguments]


def took_too_long(code: int) -> bool:
    """Tell whether a program was ended as it took more CPU time than it may. Pure.

    :param code: its exit code; negative for a signal.
    """
    return code == -signal.SIGXCPU


def was_interrupted(code: int) -> bool:
    """Tell whether a program's end says nothing of what it worked on. Pure.

    It was not begun, or others ended it: the kernel that is short of memory, a service manager, a
    terminal. One that crashed, or gave up, may have done so for what it read.

    :param code: its exit code; negative for a signal.
    """
    return code in _NOT_BEGUN or -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT,
                                           signal.SIGHUP, signal.SIGQUIT)
