"""Workloads for the recorder: each makes one kind of call under the root, in one of its forms."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw

from harness.recorder import Session

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.fopen.restype = ctypes.c_void_p
X86 = os.uname().machine == "x86_64"
NUMBERS = {
    "write": (1, 64),
    "pwrite64": (18, 68),
    "fsync": (74, 82),
    "openat": (257, 56),
    "openat2": (437, 437),
    "renameat2": (316, 276),
    "unlinkat": (263, 35),
    "linkat": (265, 37),
    "fchmodat2": (452, 452),
    "copy_file_range": (326, 285),
    "splice": (275, 76),
    "sync_file_range": (277, 84),
    "fallocate": (285, 47),
    "io_uring_setup": (425, 425),
}
DATA = bytes(range(256)) * 64

CALLS: dict[str, tuple[Callable[[Path, Session], object], set[str]]] = {}
"""By name: the workload, and the kinds that it must leave in the log."""


def call(*kinds: str) -> Callable[[Callable[[Path, Session], object]], None]:
    """Register a workload."""

    def register(body: Callable[[Path, Session], object]) -> None:
        CALLS[body.__name__] = body, set(kinds)

    return register


def raw(name: str, *arguments: object) -> int:
    """Make a direct system call; raise OSError where it fails."""
    number = NUMBERS[name][0 if X86 else 1]
    result: int = LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prepare(root: Path) -> None:
    """Make the tree that every workload starts from."""
    (root / "old").write_bytes(DATA)
    (root / "twin").write_bytes(b"twin")
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "folder" / "deep" / "leaf").write_bytes(b"leaf")
    (root / "link").symlink_to("old")
    os.link(root / "old", root / "folder" / "hard")


def opened(path: Path, flags: int = os.O_RDWR) -> int:
    """Open an existing file."""
    return os.open(path, flags)


@call("CREATE", "WRITE", "CLOSE")
def create(root: Path, session: Session) -> None:
    fd = os.open("new", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o640)
    os.write(fd, b"abc")
    os.write(fd, b"def")
    os.close(fd)


@call("CREATE", "WRITE")
def create_through_a_dangling_link(root: Path, session: Session) -> None:
    os.symlink("folder/made", root / "dangling")
    (root / "dangling").write_bytes(b"through")


@call("OPEN", "WRITE")
def truncating_open_through_links(root: Path, session: Session) -> None:
    (root / "link").write_bytes(b"short")
    (root / "folder" / "hard").write_bytes(b"shorter")


@call("WRITE")
def appends(root: Path, session: Session) -> None:
    first, second = (opened(root / "old", os.O_WRONLY | os.O_APPEND) for _ in range(2))
    os.write(first, b"one")
    os.write(second, b"two")
    os.pwrite(first, b"three", 0)  # Linux appends all the same
    os.writev(second, [b"fo", b"ur"])


@call("WRITE")
def vectors(root: Path, session: Session) -> None:
    fd = opened(root / "old")
    os.writev(fd, [b"abc", b"", b"defg"])
    os.pwritev(fd, [b"x" * 5000, b"y" * 3], 4090)
    os.pwritev(fd, [b"sync"], 100, os.RWF_SYNC)
    os.pwritev(fd, [b"dsync"], 200, os.RWF_DSYNC)
    os.pwritev(fd, [b"appended"], 0, getattr(os, "RWF_APPEND", 16))


@call("WRITE", "OPEN")
def synced_descriptors(root: Path, session: Session) -> None:
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = opened(root / "old", os.O_WRONLY | flag)
        os.write(fd, b"synced")
        os.close(fd)


@call("TRUNCATE")
def truncates(root: Path, session: Session) -> None:
    os.truncate(root / "old", 100)
    os.truncate("link", 5000)
    fd = opened(root / "old")
    os.ftruncate(fd, 20000)


@call("ALLOCATE")
def allocates(root: Path, session: Session) -> None:
    fd = opened(root / "old")
    os.posix_fallocate(fd, 10000, 20000)
    for mode, offset, length in ((1, 40000, 10), (3, 4096, 4096), (0x10, 100, 200)):
        with contextlib.suppress(OSError):  # what a file system cannot do changes nothing
            raw("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


@call("WRITE")
def copies_by_the_kernel(root: Path, session: Session) -> None:
    source, target = opened(root / "old", os.O_RDONLY), opened(root / "twin")
    os.copy_file_range(source, target, 1000, 10, 500)
    os.lseek(target, 3, os.SEEK_SET)
    os.sendfile(target, source, 20, 700)
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe")
    os.splice(reading, target, 11, offset_dst=2000)
    blind = opened(root / "folder" / "deep" / "leaf", os.O_WRONLY)
    os.sendfile(blind, source, 0, 5000)


@call("RENAME")
def renames(root: Path, session: Session) -> None:
    os.rename("old", "older")
    os.replace("older", "twin")
    os.rename("folder", "moved")
    os.rename(root / "moved" / "deep", root / "deep")
    os.rename(root / "deep" / "leaf", root / "moved" / "leaf")
    os.mkdir("empty")
    os.rename("deep", "empty")


@call("RENAME")
def renames_with_flags(root: Path, session: Session) -> None:
    raw("renameat2", -100, b"old", -100, b"twin", 2)
    raw("renameat2", -100, b"folder", -100, b"link", 2)
    raw("renameat2", -100, b"old", -100, b"fresh", 1)
    try:
        raw("renameat2", -100, b"fresh", -100, b"twin", 1)
    except FileExistsError:
        return
    raise AssertionError("NOREPLACE replaced")


@call("RENAME", "WRITE")
def rename_of_two_links_of_one_file(root: Path, session: Session) -> None:
    os.rename("old", root / "folder" / "hard")
    (root / "old").write_bytes(b"still there")


@call("RENAME", "WRITE", "CREATE")
def moves_in_and_out(root: Path, session: Session) -> None:
    beside = root.parent / "beside"
    (beside / "inner").mkdir(parents=True)
    (beside / "file").write_bytes(DATA * 9)
    (beside / "inner" / "one").write_bytes(b"one")
    (beside / "inner" / "link").symlink_to("one")
    os.rename(beside / "file", root / "came")
    os.rename(beside / "inner", root / "inner")
    with open(root / "came", "ab") as file:
        file.write(b"more")
    (root / "inner" / "two").write_bytes(b"two")
    os.rename(root / "twin", beside / "went")
    (beside / "went").write_bytes(b"not ours any more")
    os.rename(root / "folder", beside / "folder")
    (beside / "folder" / "deep" / "leaf").write_bytes(b"nor this")
    os.rename(beside / "folder", root / "back")


@call("LINK", "TMPFILE", "WRITE")
def links(root: Path, session: Session) -> None:
    os.link("old", root / "folder" / "second")
    os.link("link", "link2", follow_symlinks=False)
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"nameless")
    raw("linkat", -100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400)
    os.write(fd, b" no more")
    other = os.open("folder", os.O_TMPFILE | os.O_RDWR, 0o600)
    raw("linkat", other, b"", -100, b"empty path", 0x1000)
    os.write(other, b"after")
    outside = root.parent / "outside"
    outside.write_bytes(b"made elsewhere")
    os.link(outside, "inside")
    outside.write_bytes(b"written elsewhere")


@call("SYMLINK", "MKDIR", "RMDIR", "UNLINK", "MKNOD")
def names(root: Path, session: Session) -> None:
    os.symlink("anywhere/at all", root / "folder" / "link")
    os.mkdir("made", 0o700)
    os.mkdir(root / "made" / "below")
    os.rmdir(root / "made" / "below")
    os.unlink("twin")
    os.mkfifo("fifo", 0o600)
    os.mkdir("trailing/")


@call("UNLINK", "WRITE", "CREATE")
def inode_numbers_that_are_used_again(root: Path, session: Session) -> None:
    for number in range(20):
        fd = os.open("same", os.O_CREAT | os.O_RDWR)
        os.write(fd, b"%d" % number)
        os.unlink("same")
        os.write(fd, b"orphan")
        os.close(fd)
        (root.parent / f"elsewhere{number}").write_bytes(b"not ours")
        (root / "other").write_bytes(b"%d" % number)
        os.unlink("other")


@call("CHMOD", "CHOWN", "UTIMES")
def modes_owners_and_times(root: Path, session: Session) -> None:
    os.chmod("old", 0o604)
    fd = opened(root / "twin")
    os.fchmod(fd, 0o611)
    os.fchown(fd, os.getuid(), os.getgid())
    os.utime("old", ns=(10**18, 10**18 + 5))
    os.utime(fd)
    os.chmod(root / "folder", 0o750)


@call("SETXATTR", "REMOVEXATTR")
def attributes(root: Path, session: Session) -> None:
    fd = opened(root / "old")
    os.setxattr("twin", "user.one", b"1")
    os.setxattr(fd, "user.two", b"22")
    os.removexattr("twin", "user.one")


@call("FSYNC", "FDATASYNC", "SYNC", "SYNCFS", "SYNC_RANGE")
def syncs(root: Path, session: Session) -> None:
    fd, folder = opened(root / "old"), os.open(root / "folder", os.O_RDONLY)
    os.fsync(fd)
    os.fsync(folder)
    os.fdatasync(fd)
    LIBC.syncfs(folder)
    raw("sync_file_range", fd, ctypes.c_long(0), ctypes.c_long(100), 2)
    os.sync()


@call("MAPPING", "MSYNC")
def mapping(root: Path, session: Session) -> None:
    with open(root / "old", "r+b") as file, mmap.mmap(file.fileno(), 4096) as shared:
        shared.flush()
    with open(root / "old", "rb") as file:
        mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ).close()


@call("MAPPING")
def mapping_made_writable_later(root: Path, session: Session) -> None:
    LIBC.mmap.restype = ctypes.c_void_p
    fd = opened(root / "twin")
    address = ctypes.c_void_p(LIBC.mmap(None, ctypes.c_long(4096), 1, 1, fd, ctypes.c_long(0)))
    assert LIBC.mprotect(address, ctypes.c_long(4096), 3) == 0


@call("CLOSE")
def mapping_that_is_only_read(root: Path, session: Session) -> None:
    LIBC.mmap.restype = ctypes.c_void_p
    fd, size = opened(root / "twin"), ctypes.c_long(4096)
    address = ctypes.c_void_p(LIBC.mmap(None, size, 1, 1, fd, ctypes.c_long(0)))
    os.close(fd)
    LIBC.munmap(address, size)
    private = LIBC.mmap(address, size, 1, 0x32, -1, ctypes.c_long(0))  # at the same address
    assert LIBC.mprotect(ctypes.c_void_p(private), size, 3) == 0


@call("DUP", "CLOSE", "WRITE")
def duplicates(root: Path, session: Session) -> None:
    fd = opened(root / "old")
    again, far = os.dup(fd), os.dup2(fd, 200)
    os.close(fd)
    os.write(again, b"again")
    os.write(far, b"far")
    os.close(again)


@call("CREATE", "WRITE", "RENAME")
def relative_to_folders(root: Path, session: Session) -> None:
    folder = os.open(root / "folder", os.O_RDONLY)
    os.chdir("/")
    fd = os.open("here", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    os.rename(root / "folder", root / "gone")
    os.write(fd, b"after the rename")
    os.rename("here", "there", src_dir_fd=folder, dst_dir_fd=folder)
    os.unlink("hard", dir_fd=folder)


@call("CREATE", "WRITE", "RENAME", "UNLINK", "FSYNC", "CHMOD")
def direct_system_calls(root: Path, session: Session) -> None:
    fd = raw("openat", -100, b"direct", os.O_CREAT | os.O_RDWR, 0o644)
    raw("write", fd, b"direct", ctypes.c_long(6))
    raw("pwrite64", fd, b"at", ctypes.c_long(2), ctypes.c_long(50))
    raw("fsync", fd)
    raw("renameat2", -100, b"direct", -100, b"straight", 0)
    raw("unlinkat", -100, b"twin", 0)
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o600, 0)
    other = raw("openat2", -100, b"how", how, ctypes.c_long(24))
    raw("write", other, b"how", ctypes.c_long(3))
    os.chmod("how", 0o640)


@call("CREATE", "WRITE")
def c_stdio(root: Path, session: Session) -> None:
    file = ctypes.c_void_p(LIBC.fopen(b"stdio", b"w"))
    LIBC.fwrite(DATA, 1, len(DATA), file)
    LIBC.fprintf(file, b"and %s", b"more")
    LIBC.fclose(file)
    second = ctypes.CDLL("libc.so.6")
    second.fopen.restype = ctypes.c_void_p
    again = ctypes.c_void_p(second.fopen(b"stdio", b"r+"))
    second.fputs(b"over", again)
    second.fclose(again)


def _fill(database: str, journal: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE t (a, b)")
        for number in range(20):
            with connection:
                connection.execute("INSERT INTO t VALUES (?, randomblob(900))", (number,))
        connection.execute("DELETE FROM t WHERE a % 3")
        connection.commit()
        connection.execute("VACUUM")


@call("CREATE", "WRITE", "UNLINK", "TRUNCATE")
def sqlite3_in_every_journal_mode(root: Path, session: Session) -> None:
    for journal in ("delete", "truncate", "persist", "wal"):
        _fill(f"{journal}.db", journal)


@call("CREATE", "WRITE", "UNLINK", "FDATASYNC")
def apsw_in_wal_mode(root: Path, session: Session) -> None:
    connection = apsw.Connection("apsw.db")
    connection.execute("PRAGMA journal_mode=wal; CREATE TABLE t (a)").fetchall()
    for number in range(20):
        connection.execute("INSERT INTO t VALUES (?)", (f"{number}" * 500,))
    connection.close()


@call("CREATE", "WRITE", "RENAME", "LINK", "SYMLINK", "UNLINK", "CHMOD", "EXEC", "EXIT")
def programs(root: Path, session: Session) -> None:
    script = """
        echo hello > f; echo more >> f; cp f g; cp old big; mv g h; mv h folder/; ln f f2
        ln -s f s; rm twin; chmod 600 f; mkdir -p a/b/c; rmdir a/b/c; touch t; touch -d @5 t
        dd if=old of=dd bs=1000 count=3 2>/dev/null; dd if=old of=dd conv=notrunc seek=1 2>/dev/null
        cat old | head -c 5000 > piped; cp -r folder copied; sed -i s/hello/bye/ f; truncate -s 9 t
        tar cf all.tar folder; tar xf all.tar -C a; sync f; rm -r copied; mkfifo p; env -i cp f last
    """
    subprocess.run(["sh", "-ec", script], check=True)
    subprocess.run(["mv", "f", "moved"], check=True, env={})


@call("CREATE", "WRITE")
def threads(root: Path, session: Session) -> None:
    def work(name: str) -> None:
        with (
            open(f"thread{name}", "wb", buffering=0) as file,
            open("old", "ab", buffering=0) as all,
        ):
            for number in range(50):
                file.write(b"%d," % number)
                all.write(f"{name}{number},".encode())

    started = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


@call("CREATE", "WRITE", "UNLINK")
def forks_that_write_at_once(root: Path, session: Session) -> None:
    pids = []
    for name in "abc":
        pid = os.fork()
        if pid == 0:
            fd = os.open("old", os.O_WRONLY | os.O_APPEND)
            for number in range(60):
                os.write(fd, f"{name}{number},".encode())
                os.close(os.open(f"{name}{number}", os.O_CREAT | os.O_WRONLY))
                if number % 2:
                    os.unlink(f"{name}{number}")
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0


@call("MKNOD")
def socket_with_a_name(root: Path, session: Session) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")


@call("CREATE", "WRITE")
def odd_names(root: Path, session: Session) -> None:
    for name in (b"\xff\xfe", "ü".encode(), b"new\nline", b"x" * 255, b" ", b"-"):
        fd = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.write(fd, name)
        os.close(fd)
