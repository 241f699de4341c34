"""`open` behaves as the built-in one does, and each real write of its files is reported."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observing import Observed, both, serving


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with the hooks installed, which forks a child for each snippet."""
    with serving() as process:
        yield process


@pytest.fixture
def store(server: subprocess.Popen[str], tmp_path: Path) -> Observed:
    """Runs snippets in an empty folder of their own."""
    return Observed(server, tmp_path.resolve())


@pytest.mark.parametrize(
    "writing",
    [
        "open('f', 'w').write('x')",
        "open('f', 'wb').write(b'x')",
        "open('f', 'xb', buffering=0).write(b'x')",
        "open('f', 'a', buffering=1).write('x\\n')",
        "open('f', 'w+b').write(b'x')",
        "open(b'f', 'tw').write('x')",
        "open(os.open('f', os.O_CREAT | os.O_WRONLY), 'wb').write(b'x')",
        "open('f', 'w', opener=lambda path, flags: os.open(path, flags)).write('x')",
        "io.open('f', 'w').write('x')",
        "os.fdopen(os.open('f', os.O_CREAT | os.O_WRONLY), 'w').write('x')",
        "pathlib.Path('f').write_text('x')",
        "pathlib.Path('f').write_bytes(b'x')",
        "pathlib.Path('f').open('w').write('x')",
        "codecs.open('f', 'w', 'utf-8').write('x')",
    ],
)
def test_each_way_to_write_a_file_is_one_write(store: Observed, writing: str) -> None:
    """Text, binary, unbuffered and random access files report their write once it is made."""
    source = f"""
import codecs, io, os, pathlib, warnings
warnings.simplefilter("ignore")
{writing}
"""
    assert store.events(source) == both("write", "f")
    assert (store.root / "f").read_bytes().strip() == b"x"


def test_unbuffered_writes_are_two_boundaries(store: Observed) -> None:
    """Between two writes of an unbuffered log there is a boundary (INTERFACE's example Log)."""
    source = """
import os
with open('log', 'ab', buffering=0) as f:
    f.write(b'1')
    f.write(b'\\n')
    os.fsync(f.fileno())
"""
    assert store.events(source) == both("write", "log") * 2 + both("file_sync", "log")


def test_json_dump_is_written_at_the_flush(store: Observed) -> None:
    """A buffered text file writes once, at its flush, however many pieces json gives it."""
    source = """
import json, os
with open('s.json', 'w') as f:
    json.dump({'a': [1, 2, 3]}, f)
    events.append(('point', 'before', 'flush'))
    f.flush()
    os.fsync(f.fileno())
os.replace('s.json', 't.json')
"""
    assert store.events(source) == [
        ("point", "before", "flush"),
        *both("write", "s.json"),
        *both("file_sync", "s.json"),
        *both("rename", "s.json", "t.json"),
    ]


def test_large_data_is_written_in_its_real_pieces(store: Observed) -> None:
    """Each write behind a buffer is one boundary, as many as the built-in layers make."""
    source = """
import io
class Counting(io.FileIO):
    def write(self, data):
        pieces.append(len(data))
        return super().write(data)
pieces = []
with io.BufferedWriter(Counting('g', 'w'), 16) as f:
    for n in range(4):
        f.write(b'x' * 10)
with open('f', 'wb', buffering=16) as f:
    for n in range(4):
        f.write(b'x' * 10)
result = len(pieces)
"""
    outcome = store.run(source)
    assert outcome.result > 1
    assert outcome.events == both("write", "f") * outcome.result


def test_default_buffer_is_as_large_as_the_builtins(store: Observed) -> None:
    """The bytes that have reached the file after many small writes are the same."""
    source = """
result = []
for opened in (open, real_open):
    with opened('f', 'wb') as f:
        for n in range(300):
            f.write(b'x' * 1000)
        result.append(f.raw.tell())
"""
    ours, theirs = store.run(source).result
    assert ours == theirs > 0


def test_random_access_file_reads_and_writes(store: Observed) -> None:
    """r+b reads what was there, writes in place, and reports only the write."""
    (store.root / "f").write_bytes(b"abcdef")
    source = """
with open('f', 'r+b') as f:
    result = [f.read(2).decode()]
    f.seek(1)
    f.write(b'X')
    f.seek(0)
    result.append(f.read().decode())
"""
    outcome = store.run(source)
    assert outcome.result == ["ab", "aXcdef"]
    assert outcome.events == both("write", "f")


@pytest.mark.parametrize("mode", ["wb", "w", "w+b"])
@pytest.mark.parametrize("is_cycle", [False, True])
def test_collected_files_keep_what_the_builtin_keeps(
    store: Observed, mode: str, is_cycle: bool
) -> None:
    """A dropped file flushes; in a cycle CPython may close the raw file first, here as there."""
    source = f"""
import gc, warnings
warnings.simplefilter('ignore')
result = []
for make in (open, real_open):
    f = make('f', {mode!r})
    f.write('x' if 'b' not in {mode!r} else b'x')
    if {is_cycle}:
        f.me = f
    del f
    gc.collect()
    with real_open('f') as written:
        result.append(written.read())
"""
    outcome = store.run(source)
    ours, theirs = outcome.result
    assert ours == theirs
    assert outcome.events == (both("write", "f") if ours else [])
    assert ours or is_cycle


def test_read_only_and_unobserved_files_are_the_builtins_own(store: Observed) -> None:
    """Reading, and opening while observation is off, gives exactly the built-in objects."""
    (store.root / "f").write_text("x")
    source = """
import io
with open('f', 'rb', 0) as raw, open('f') as text:
    result = [type(raw) is io.FileIO, type(text.buffer.raw) is io.FileIO]
observe.attach(None)
with open('f', 'wb', 0) as raw:
    result.append(type(raw) is io.FileIO)
"""
    outcome = store.run(source)
    assert (outcome.result, outcome.events) == ([True] * 3, [])


COMPARISON = """
import io, os, pathlib, warnings

def described(file):
    layers = []
    for part in (file, getattr(file, 'buffer', None), getattr(file, 'raw', None)):
        if part is not None:
            layers.append([
                'FileIO' if isinstance(part, io.FileIO) else type(part).__name__,
                str(getattr(part, 'mode', None)), str(part.name), part.readable(),
                part.writable(), part.seekable(), part.tell(),
            ])
    return layers + [str(getattr(file, name, None)) for name in
                     ('encoding', 'errors', 'newlines', 'line_buffering', 'write_through')]

def outcome(opened, arguments, named):
    with real_open('f', 'w') as file:
        file.write('abc')
    if os.path.exists('new'):
        os.unlink('new')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        try:
            file = opened(*arguments, **named)
        except Exception as error:
            answer = [type(error).__name__, str(error)]
        else:
            answer = described(file)
            try:
                answer.append(file.write(b'x\\n' if 'b' in file.mode else 'x\\n'))
            except Exception as error:
                answer.append(repr(error))
            with real_open(file.name if isinstance(file.name, (str, bytes)) else 'f', 'rb') as seen:
                answer.append(seen.read().decode())
            file.close()
    left = sorted(os.listdir('.'))
    with real_open('f', 'rb') as seen:
        left.append(seen.read().decode())
    return [answer, left, [[w.category.__name__, str(w.message)] for w in caught]]

class Odd:
    def __fspath__(self):
        return 'f'

cases = [((name, mode), {}) for name in ('f', 'new', 'none/f', b'f', pathlib.Path('f'), Odd())
         for mode in ('w', 'wb', 'a', 'ab', 'x', 'xb', 'r+', 'r+b', 'w+', 'a+b', 'x+', 'bw+', '+wt',
                      'rw', 'wbt', 'ww', '', 'wU', 'q', '+', 'w++')]
for mode in ('w', 'wb', 'r+', 'r+b', 'x', 'xb'):
    for name, value in (
        ('buffering', 0), ('buffering', 1), ('buffering', 2), ('buffering', -1), ('buffering', -7),
        ('buffering', None), ('buffering', 1.5), ('buffering', True), ('buffering', 1 << 20),
        ('encoding', 'utf-8'), ('encoding', 'nope'), ('encoding', 3), ('encoding', 'a' + chr(0)),
        ('errors', 'replace'), ('errors', 'nope'), ('errors', 3),
        ('newline', ''), ('newline', chr(13)), ('newline', 'x'), ('newline', 3),
        ('closefd', False), ('opener', lambda path, flags: -1), ('opener', lambda path, flags: 'x'),
        ('opener', 3), ('nonsense', 1),
    ):
        cases.append((('f', mode), {name: value}))
        cases.append((('new', mode), {name: value}))
cases += [((f, 'w'), {}) for f in (None, 1.5, -1, 9999, '', 'a' + chr(0), '.', [])]
cases += [(('f', m), {}) for m in (None, 3, b'w', [])] + [((), {}), (('f', 'w') + (1,) * 9, {})]
cases += [(('f',), dict(mode='w')), ((), dict(file='f', mode='wb'))]
result = []
for arguments, named in cases:
    expected = outcome(real_open, arguments, named)
    answer = outcome(open, arguments, named)
    if expected[0][0] == answer[0][0] == 'TypeError' and 'argument' in answer[0][1]:
        answer[0][1] = expected[0][1]  # Python functions word wrong argument names differently
    if answer != expected:
        result.append([repr(arguments), repr(named), answer, expected])
count = len(cases)
result = [count, result]
"""


@pytest.mark.slow
def test_open_answers_as_the_builtin_for_every_argument(store: Observed) -> None:
    """Objects, attributes, contents, warnings and errors are those of the built-in open."""
    outcome = store.run(COMPARISON)
    count, differences = outcome.result
    assert count > 400
    assert differences == []


def test_open_of_a_terminal_is_line_buffered(store: Observed) -> None:
    """On a terminal text is written at each newline, and terminals make no boundary."""
    source = """
import os
master, slave = os.openpty()
os.set_blocking(master, False)
result = []
for opened in (open, real_open):
    with opened(slave, 'w', closefd=False) as file:
        file.write('x\\n')
        result.append([file.line_buffering, file.buffer.raw.isatty(), os.read(master, 9).decode()])
"""
    outcome = store.run(source)
    assert outcome.result == [[True, True, "x\r\n"]] * 2
    assert outcome.events == []


def test_integer_descriptors_obey_closefd(store: Observed) -> None:
    """A descriptor is closed with the file, or left open with closefd=False."""
    source = """
import os
result = []
for closefd in (True, False):
    fd = os.open('f', os.O_CREAT | os.O_WRONLY)
    with open(fd, 'wb', closefd=closefd) as file:
        result.append(file.name == fd)
    try:
        os.fstat(fd)
        result.append('open')
    except OSError:
        result.append('closed')
"""
    assert store.run(source).result == [True, "closed", True, "open"]


def test_refused_layer_closes_the_file(store: Observed) -> None:
    """When the text layer is refused, no descriptor is left open."""
    source = """
import os
before = os.listdir('/proc/self/fd')
try:
    open('f', 'w', encoding='nope')
except LookupError:
    result = os.listdir('/proc/self/fd') == before
"""
    assert store.run(source).result is True


def test_unclosed_file_warns_as_the_builtin_does(store: Observed) -> None:
    """A file that is never closed gives the same ResourceWarning."""
    source = """
import gc, warnings
result = []
for opened in (open, real_open):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        opened('f', 'w').write('x')
        gc.collect()
    result.append([str(warning.message) for warning in caught])
"""
    ours, theirs = store.run(source).result
    assert ours == theirs
    assert len(ours) == 1


def test_tempfile_works_and_is_observed(store: Observed) -> None:
    """A named temporary file is opened by the same hook, and keeps its name attribute."""
    source = """
import os, tempfile
with tempfile.NamedTemporaryFile('w', dir=ROOT, delete=False) as file:
    file.write('x')
    result = isinstance(file.name, str)
os.replace(file.name, 'f')
events[:] = [event[:2] for event in events]
"""
    outcome = store.run(source)
    assert outcome.result is True
    assert outcome.events == both("write") + both("rename")
