"""
Run one piece of work in a forked child, and leave nothing of it behind.

This module runs inside the zygote: a small process with one thread and no other children. A child
ends in `os._exit` on every path, is bounded in time, prints into memory, and takes everything that
it started with it when it ends.

Covered: children that end, raise, crash, are killed, hang in Python, hang in C, are stopped, ignore
SIGABRT or close their standard output; processes that they leave behind, also when these called
setsid, forked twice or go on forking.

Not covered: processes that are no longer descendants (a daemon started through systemd or a
container engine), and what a daemon does between the death of its parent and its own, some
milliseconds later. When the zygote itself is killed by SIGKILL its child dies with it, its
grandchildren may not.
"""

# ruff: noqa: SIM105 - contextlib.suppress costs each child 10 us on the way that all of them take

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeAlias

from harness.errors import ConfigurationError, Hangup, HarnessError
from harness.stacks import from_character, without_own_frames

__all__ = [
    "CRASH_STATUS",
    "EXIT_RAISED",
    "Ended",
    "Leftover",
    "Output",
    "become_zygote",
    "describe",
    "kill_all",
    "run_child",
]

CRASH_STATUS = 86
"""Exit status of a child that is ended at a boundary."""

EXIT_RAISED = 87
"""Exit status of a child whose target raised, or that could not be set up."""

ABORT_SECONDS = 2.0
"""How long a hung child may take to write its stacks and die of SIGABRT."""

KILL_SECONDS_MAX = 10.0
"""How long killed processes may take to die before the harness gives up on them."""

GRACE_SECONDS = 0.05
"""How long a process that outlives its parent may take to end before it counts as left behind."""

BUSY_SECONDS_MAX = 2.0
"""How long such a process may take while it is running: on a busy machine an end takes longer."""

LEFTOVERS_MAX = 50
"""How many processes left behind are described; all of them are killed."""

OUTPUT_BYTES_MAX = 64 << 20
"""Above this size a running child's output is cut to its tail: endless printing is harmless."""

_OUTPUT_TAIL_BYTES = 1 << 20
_STACK_BYTES_MAX = 64 << 10
_COMMAND_CHARACTERS_MAX = 300
_POLL_SECONDS = 0.1
_STACK_MARK = b"Fatal Python error: Aborted"
_stacks_fd = -1
# Not signal.getsignal, which raises and catches an exception for a handler that is a function.
_getsignal: Callable[[int], object] = getattr(sys.modules["_signal"], "getsignal")  # noqa: B009
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers
_FRESH_HANDLERS: dict[signal.Signals, _Handler] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that was still alive after the child that started it had ended."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Ended:
    """
    How a child ended: exactly one of *exit_status* and *signal* is set.

    *stack* is filled only where *is_hung*: the stacks of all threads of the hung child, or what the
    kernel said of it where it wrote none. *seconds* runs from before the fork to the child's end.
    """

    exit_status: int | None
    signal: int | None
    is_hung: bool
    stack: str
    leftovers: tuple[Leftover, ...]
    seconds: float


class Output:
    """
    Memory that collects what children print to their standard output and error.

    One object serves any number of children, one after another; `clear` between two of them.
    """

    def __init__(self) -> None:
        created = os.memfd_create("child-output", os.MFD_CLOEXEC)
        try:
            # Above 2, for a zygote that was started with closed standard descriptors.
            self._fd = fcntl.fcntl(created, fcntl.F_DUPFD_CLOEXEC, 3)
        finally:
            os.close(created)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)
        self._cut_bytes = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """Return the descriptor, always above 2, opened for appending."""
        return self._fd

    def clear(self) -> None:
        """Forget everything printed so far."""
        os.ftruncate(self._fd, 0)
        self._cut_bytes = 0

    def size_bytes(self) -> int:
        """Return how many bytes are held now."""
        return os.fstat(self._fd).st_size

    def text(self, *, limit_bytes: int = 64 << 10) -> str:
        """
        Return the last *limit_bytes* printed; where more was, a first line says how much is cut.

        Bytes that are not UTF-8 become U+FFFD.
        """
        size = os.fstat(self._fd).st_size
        if not size:
            return ""
        start = max(0, size - limit_bytes)
        data = os.pread(self._fd, size - start, start)
        cut = self._cut_bytes + start
        if cut:
            whole = from_character(data)
            cut += len(data) - len(whole)
            return f"[{cut:,} bytes before this are cut]\n" + whole.decode(errors="replace")
        return data.decode(errors="replace")

    def bytes_from(self, offset: int, *, limit_bytes: int) -> bytes:
        """Return at most *limit_bytes* printed from byte *offset* on."""
        return os.pread(self._fd, limit_bytes, offset)

    def keep_small(self) -> None:
        """Cut to the last MiB where more than OUTPUT_BYTES_MAX are held; a child may print on."""
        size = self.size_bytes()
        if size > OUTPUT_BYTES_MAX:
            tail = self.bytes_from(size - _OUTPUT_TAIL_BYTES, limit_bytes=_OUTPUT_TAIL_BYTES)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, tail)
            self._cut_bytes += size - len(tail)


def become_zygote() -> None:
    """
    Make this process the one that inherits and reaps every descendant of its children.

    Also takes its input away, switches core dumps off, here and in all children, unblocks all
    signals, and lets ended children be waited for.

    Raises: ConfigurationError: the platform has no fork, pidfd_open, memfd_create or /proc.
    Source: prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4; pidfd_open(2), Linux 5.3.
    """
    for name in ("fork", "pidfd_open", "memfd_create"):
        if not hasattr(os, name):
            raise ConfigurationError(
                f"os.{name} is missing on {sys.platform}: children are run with it. "
                "Use Linux 5.4 or later with glibc."
            )
    try:
        os.close(os.pidfd_open(os.getpid()))
        _read_stat(os.getpid())
    except OSError as error:
        raise ConfigurationError(
            f"cannot watch processes: {error}. Linux 5.4 or later with /proc mounted is needed, "
            "and a container must allow pidfd_open."
        ) from error
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)
    os.set_inheritable(0, True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A parent may have handed down "ignored", and then the kernel reaps children before we do.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(AttributeError, ValueError):
        # For the children: a crash flushes nothing, so lines must leave at once.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def run_child(
    target: Callable[[], int],
    *,
    directory: Path,
    timeout_seconds: float,
    output: Output,
    hangup_fd: int | None = None,
    close_in_child: Sequence[int] = (),
) -> Ended:
    """
    Fork, run *target* in the child, wait for its end, and end everything that it left behind.

    The child has *directory* as its working directory, no input, its output in *output*, the signal
    handling of a fresh Python program, and dies with this process. It ends by `os._exit` with what
    *target* returned (0 to 255); where *target* raised anything, SystemExit included, with
    EXIT_RAISED and the traceback in *output*. Exit handlers and destructors do not run.

    The caller is single-threaded, called `become_zygote` and has no other children.

    Args:
        timeout_seconds: After that the child is hung: SIGABRT, by which faulthandler writes its
            stacks, then SIGKILL where it did not die of it.
        hangup_fd: A pipe or socket to whoever asked for the work; its end ends the child.
        close_in_child: Descriptors that the child must not hold, so that their end of file comes.
    Raises:
        Hangup: The other side of *hangup_fd* is closed; no descendant is alive any more.
        HarnessError: A process does not die of SIGKILL.
    Cost: About a bare fork and wait, 0.5 to 1.5 ms; GRACE_SECONDS more where something is left,
        BUSY_SECONDS_MAX where that is busy.
    """
    _flush_streams()
    started = time.monotonic()
    parent = os.getpid()
    # Looked up and converted here: in the child each touched page costs a copy, 2 us. For the
    # same reason the code that every child runs calls few functions, and builds few objects.
    place = os.fspath(directory)
    handlers = {n: h for n, h in _FRESH_HANDLERS.items() if _getsignal(n) != h}
    _write_stacks_to(output.fileno())
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(target, parent, handlers, place, output.fileno(), close_in_child)
        is_hung, stack = _watch(pid, timeout_seconds, output, hangup_fd)
        _, wait_status = os.waitpid(pid, 0)
        seconds = time.monotonic() - started
        has_ended_itself = wait_status != CRASH_STATUS << 8 and os.WIFEXITED(wait_status)
        leftovers = _end_survivors(BUSY_SECONDS_MAX if has_ended_itself else GRACE_SECONDS)
    except BaseException:
        if os.getpid() != parent:  # a signal's exception in the child, before its own guard
            os._exit(EXIT_RAISED)
        with contextlib.suppress(HarnessError):
            kill_all()
        raise
    is_signaled = os.WIFSIGNALED(wait_status)
    return Ended(
        exit_status=None if is_signaled else os.WEXITSTATUS(wait_status),
        signal=os.WTERMSIG(wait_status) if is_signaled else None,
        is_hung=is_hung,
        stack=stack,
        leftovers=leftovers,
        seconds=seconds,
    )


def describe(ended: Ended) -> str:
    """Return how the child ended, to follow a subject: "ended by itself with status 0"."""
    if ended.signal is not None:
        end = f"was killed by signal {_signal_name(ended.signal)}"
    elif ended.exit_status == EXIT_RAISED:
        end = f"raised an error (status {EXIT_RAISED})"
    elif ended.exit_status == CRASH_STATUS:
        end = f"was ended at a boundary (status {CRASH_STATUS})"
    else:
        end = f"ended by itself with status {ended.exit_status}"
    if ended.is_hung:
        end = f"hung for {ended.seconds:.1f} s and {end}"
    if ended.leftovers:
        left = ", ".join(f"{process.pid} ({process.command})" for process in ended.leftovers)
        end += f", leaving behind: {left}"
    return end


# The child.


def _be_child(
    target: Callable[[], int],
    parent: int,
    handlers: Mapping[signal.Signals, _Handler],
    place: str,
    output_fd: int,
    close_in_child: Sequence[int],
) -> NoReturn:
    status = EXIT_RAISED
    try:
        try:
            _prctl(_PR_SET_PDEATHSIG, 9)
            if os.getppid() != parent:  # it died before the line above
                os._exit(EXIT_RAISED)
            for descriptor in close_in_child:
                os.close(descriptor)
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.chdir(place)
            status = _checked_status(target())
        except BaseException as error:
            status = EXIT_RAISED
            _flush_streams()
            _print_error(error, output_fd)
        _flush_streams()
    finally:
        os._exit(status)


def _write_stacks_to(output_fd: int) -> None:
    """
    Have this process, and so its children, write its stacks there when it dies of a signal.

    To the memory itself: a store may close or redirect its descriptor 2.
    """
    global _stacks_fd
    if output_fd != _stacks_fd or not faulthandler.is_enabled():
        faulthandler.enable(file=output_fd, all_threads=True)
        _stacks_fd = output_fd


def _checked_status(status: int) -> int:
    if isinstance(status, int) and 0 <= status <= 255:
        return status
    raise ValueError(f"status={status!r} must be an integer from 0 to 255")


def _print_error(error: BaseException, output_fd: int) -> None:
    # The first frame is this module's.
    shown = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, shown))
    os.write(output_fd, text.encode("utf-8", "backslashreplace"))


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Whatever a store put in their place must not change how the child ends.
        try:
            stream.flush()
        except Exception:
            pass


# The parent: watching the child.


def _watch(
    pid: int, timeout_seconds: float, output: Output, hangup_fd: int | None
) -> tuple[bool, str]:
    """Wait until the child *pid* is dead, by force where needed; return (is_hung, stack)."""
    pidfd = os.pidfd_open(pid)
    try:
        if _wait_for_end(pidfd, timeout_seconds, output, hangup_fd):
            return False, ""
        return True, _end_hung(pid, pidfd, output, hangup_fd)
    finally:
        os.close(pidfd)


def _wait_for_end(pidfd: int, seconds: float, output: Output, hangup_fd: int | None) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if hangup_fd is not None:
        poller.register(hangup_fd, select.POLLRDHUP)  # POLLHUP and POLLERR always come
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        ready = poller.poll(max(0.0, min(left, _POLL_SECONDS)) * 1000)
        if len(ready) == 1 and ready[0][0] == pidfd:
            return True
        if ready:
            raise Hangup("the process that asked for this work is gone")
        if left <= 0:
            return False
        output.keep_small()


def _end_hung(pid: int, pidfd: int, output: Output, hangup_fd: int | None) -> str:
    """End a hung child and return its stacks, or what else is known of where it was."""
    state, place = _kernel_view(pid)
    offset = output.size_bytes()
    signal.pidfd_send_signal(pidfd, signal.SIGABRT)
    if state in "Tt":
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)  # a stopped process handles no signal
    if not _wait_for_end(pidfd, ABORT_SECONDS, output, hangup_fd):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not _wait_for_end(pidfd, KILL_SECONDS_MAX, output, hangup_fd):
            raise HarnessError(
                f"child {pid} does not die of SIGKILL ({place}); restart the machine"
            )
    start = min(offset, output.size_bytes())
    printed = output.bytes_from(start, limit_bytes=_STACK_BYTES_MAX)
    mark = printed.find(_STACK_MARK)
    if mark >= 0:
        os.ftruncate(output.fileno(), start + mark)  # it is told by itself, not as what was printed
        return without_own_frames(printed[mark:].decode(errors="replace"))
    return f"the child wrote no stack when asked to by SIGABRT; before that it was {place}"


def _kernel_view(pid: int) -> tuple[str, str]:
    state = _read_stat(pid)[0]
    names = {"R": "running", "S": "sleeping", "D": "in an uninterruptible wait", "T": "stopped"}
    place = names.get(state, f"in state {state}")
    with contextlib.suppress(OSError):
        waiting_in = Path(f"/proc/{pid}/wchan").read_text()
        if waiting_in not in ("", "0"):
            place += f" in the kernel's {waiting_in}"
    return state, place


# The parent: what the child left behind.


def _end_survivors(busy_seconds: float) -> tuple[Leftover, ...]:
    """Reap the dead, wait for what is about to end, longer if it is busy, end the rest."""
    if _reap():
        return ()
    started = time.monotonic()
    foreign: set[int] = set()
    while True:
        time.sleep(0.0005)
        if _reap():
            return ()  # such as Python's resource tracker, which ends when its parent has
        waited = time.monotonic() - started
        if waited >= busy_seconds or (waited >= GRACE_SECONDS and not _are_busy(foreign)):
            return kill_all()


def _are_busy(foreign: set[int]) -> bool:
    """Say whether a descendant runs, waits for a processor or for the disk."""
    for pid, _ in _descendants(foreign):
        with contextlib.suppress(OSError):
            if _read_stat(pid)[0] in "RD":
                return True
    return False


def _reap() -> bool:
    """Reap every zombie; return whether no descendant is left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def kill_all() -> tuple[Leftover, ...]:
    """
    Kill every descendant, over and over until none is left, since they may fork meanwhile.

    Raises: HarnessError: some are still alive after KILL_SECONDS_MAX.
    """
    found: dict[int, Leftover] = {}
    foreign: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS_MAX
    while not _reap():
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.pid} ({process.command})" for process in found.values())
            raise HarnessError(f"processes left behind do not die of SIGKILL: {names or 'unseen'}")
        living = _descendants(foreign)
        for pid, parent in living:
            if pid not in found and len(found) < LEFTOVERS_MAX:
                found[pid] = Leftover(pid, _command(pid))
            _kill(pid, parent)
        if all(pid in found for pid, _ in living):
            time.sleep(0.0002)
    return tuple(found.values())


def _descendants(foreign: set[int]) -> list[tuple[int, int]]:
    """
    Return (pid, parent) of every living descendant, parents first.

    Reads each process's parent from /proc, since /proc/PID/task/TID/children needs a kernel option.
    *foreign* remembers processes that are none of ours, so that a second look is fast enough to
    catch a process that keeps forking.
    """
    children: dict[int, list[int]] = {}
    seen: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, none kept
        if not name.isdigit() or int(name) in foreign:
            continue
        with contextlib.suppress(OSError):
            state, parent, threads = _read_stat(int(name))
            seen.append(int(name))
            # A process whose first thread ended is shown as a zombie while others run.
            if state not in "ZX" or threads > 1:
                children.setdefault(parent, []).append(int(name))
    ours = [(os.getpid(), 0)]
    for pid, _ in ours:  # grows while it is walked
        ours.extend((child, pid) for child in children.get(pid, ()))
    foreign.update(set(seen).difference(pid for pid, _ in ours))
    return ours[1:]


def _kill(pid: int, parent: int) -> None:
    """Kill *pid*, unless that number now belongs to a process that is no descendant of ours."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _read_stat(pid)[1] in (parent, os.getpid()):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _read_stat(pid: int) -> tuple[str, int, int]:
    """
    Return the state letter, the parent and the number of threads of *pid*.

    Raises: OSError: it is gone.
    Source: proc(5), /proc/PID/stat, fields 3, 4 and 20.
    """
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        line = os.read(descriptor, 1024)
    finally:
        os.close(descriptor)
    # The name in parentheses may itself hold spaces and parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[17])


def _command(pid: int) -> str:
    """Return the command line of *pid*, or its name in brackets where it has none."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()
        is_fork = line == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return "gone"
    import shlex  # only here, and a zygote that never sees a leftover needs none of it

    words = [word.decode(errors="replace") for word in line.rstrip(b"\0").split(b"\0")]
    command = shlex.join(words) if line else f"[{name}]"
    if len(command) > _COMMAND_CHARACTERS_MAX:
        command = command[:_COMMAND_CHARACTERS_MAX] + "..."
    if is_fork:
        return f"{command}, a fork of the child without a program of its own"
    return command if name in command else f"{command}, named {name}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno() or errno.EINVAL
        raise ConfigurationError(f"prctl({option}, {value}) failed: {os.strerror(number)}")
