"""Commands that installed stores bring: found late, kept apart, and never in the way."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main

_numbers = itertools.count()

GREET = """
import click
@click.command()
@click.option("--code", type=int, default=0)
def greet(code):
    "Greet the operator."
    click.echo("hello")
    return code
"""

RAISING = """
import click
@click.command()
def greet():
    raise {error}
"""


class Site:
    """A folder on the path in which distributions are installed as pip leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = f"store_commands_{next(_numbers)}"

    def install(
        self,
        source: str = GREET,
        *,
        distribution: str = "tin-store",
        command: str = "greet",
        attribute: str = "greet",
        group: str = "crashconform.commands",
    ) -> str:
        """Install one module with one entry point, and return the module's name."""
        module = f"{self.module}_{distribution.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(source)
        self.describe(distribution, f"[{group}]\n{command} = {module}:{attribute}\n".encode())
        return module

    def describe(self, distribution: str, entry_points: bytes) -> None:
        """Write what pip keeps about a distribution."""
        about = self.folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        (about / "entry_points.txt").write_bytes(entry_points)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "harness.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the distributions are installed."""
        return {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "100"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A place for distributions, on this process's path too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return Site(tmp_path)


@pytest.mark.parametrize("code", [0, 1, 2, 7, 255])
def test_exit_code_is_what_the_command_returned(
    site: Site, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed command runs with its own options, and its result is the exit code."""
    site.install()
    assert main(["greet", "--code", str(code)]) == code
    assert capsys.readouterr() == ("hello\n", "")


@pytest.mark.parametrize("result", ["None", "True", "False", "'done'"])
def test_result_that_is_no_number_is_success(site: Site, result: str) -> None:
    """What click would ignore is ignored: a bool is an answer, not an exit code."""
    site.install(GREET.replace("return code", f"return {result}"))
    assert main(["greet"]) == 0


@pytest.mark.parametrize("code", ["256", "-1"])
def test_result_that_is_no_exit_code_is_told(
    site: Site, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """256 would leave the process as 0: it is refused as a mistake of the command."""
    site.install()
    assert main(["greet", "--code", code]) == 3
    assert f"it returned {code}, and exit codes are 0 to 255" in capsys.readouterr().err


def test_command_of_a_group_returns_its_exit_code(site: Site) -> None:
    """A store may bring a whole group; the entry point's name is the command's."""
    site.install(
        "import click\n@click.group()\ndef tin(): pass\n@tin.command()\ndef check(): return 5\n",
        command="tin-store",
        attribute="tin",
    )
    assert main(["tin-store", "check"]) == 5


@pytest.mark.parametrize("arguments", [["--code", "x"], ["--nonsense"], ["--co"], ["more"]])
def test_wrong_usage_of_an_installed_command_exits_2(
    site: Site, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its usage errors look like those of any other command."""
    site.install()
    assert main(["greet", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("crashconform: error: ")
    told, hint = error.split(" See ")
    assert told.endswith((".", "?"))
    assert hint == "crashconform greet --help.\n"


def test_error_for_the_user_keeps_the_exit_code_that_it_asks_for(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ClickException is one paragraph with the code of its class."""
    site.install(
        RAISING.format(error="Refused('no database')")
        + "class Refused(click.ClickException): exit_code = 9\n"
    )
    assert main(["greet"]) == 9
    assert capsys.readouterr().err == "crashconform: error: no database\n"


@pytest.mark.parametrize("error", ["ValueError('tin')", "OSError(5, 'tin')", "BrokenPipeError()"])
def test_exception_of_an_installed_command_is_that_commands_bug(
    site: Site, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names command, entry point and distribution, and does not blame crashconform."""
    module = site.install(RAISING.format(error=error))
    assert main(["greet"]) == 3
    printed = capsys.readouterr().err
    assert printed.startswith("crashconform: error: command 'greet' failed. This is a bug of the ")
    assert f"entry point greet = {module}:greet of tin-store 1.2, with what follows.\n" in printed
    assert "Traceback (most recent call last):" in printed
    assert "bug in crashconform" not in printed


BROKEN = {
    "import tin_that_is_missing": "ModuleNotFoundError: No module named 'tin_that_is_missing'",
    "raise RuntimeError('first\\n\\nsecond')": "RuntimeError: first second",
    "def greet(:": "SyntaxError: invalid syntax (",
    "import sys; sys.exit(0)": "cannot be loaded: SystemExit: 0",
    "raise BaseException": "cannot be loaded: BaseException",
    "other = 1": "AttributeError: ",
    "greet = print": "is of type builtin_function_or_method, not a click command",
    "def greet(): pass": "is of type function, not a click command",
}


@pytest.mark.parametrize("source", BROKEN)
def test_command_that_cannot_be_loaded_is_one_paragraph(
    site: Site, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Distribution, entry point and error are named; the exit code is 2."""
    module = site.install(source)
    assert main(["greet"]) == 2
    printed = capsys.readouterr().err
    assert f"entry point greet = {module}:greet of tin-store 1.2, in the group" in printed
    assert BROKEN[source] in printed
    assert printed.count("\n") == 1
    assert printed.endswith(" Repair, upgrade or uninstall tin-store 1.2.\n")


@pytest.mark.parametrize("source", BROKEN)
def test_command_that_cannot_be_loaded_breaks_no_help(
    site: Site, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help lists it as broken, beside one of another store that works."""
    site.install(source)
    site.install(distribution="zinc-store", command="zinc")
    assert main(["--help"]) == 0
    printed, error = capsys.readouterr()
    section = printed.partition("Commands of installed stores:\n")[2]
    assert "  greet       cannot be loaded; run it to see why\n" in section
    assert "  zinc        Greet the operator.\n" in section
    assert error == ""
    assert main(["zinc"]) == 0


@pytest.mark.parametrize("value", [b"no colon or module!", b"", b"a:b:c"])
def test_entry_point_that_means_nothing_is_told(
    site: Site, value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is no entry point cannot be loaded, which is told when it is asked for."""
    site.describe("tin-store", b"[crashconform.commands]\ngreet = " + value + b"\n")
    assert main(["greet"]) == 2
    assert "tin-store 1.2" in capsys.readouterr().err
    assert main(["--help"]) == 0


def test_distribution_that_cannot_be_read_hides_no_other(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry points are no text: others are found, and an unknown name is told why."""
    site.describe("tin-store", b"[crashconform.commands]\n\xff\xfe = x:y\n")
    site.install(distribution="zinc-store")
    assert main(["greet"]) == 0
    assert main(["--help"]) == 0
    assert main(["tin"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("crashconform: error: No such command 'tin'. Not every installed ")
    assert f"one in {site.folder} has UnicodeDecodeError: " in error


def test_unknown_command_is_a_usage_error(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that nobody brings is told as before."""
    site.install(group="crashconform.other")
    assert main(["greet"]) == 2
    assert "No such command 'greet'." in capsys.readouterr().err


def test_name_of_a_built_in_command_stays_its_own(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed command named like a built-in one is ignored, and not even imported."""
    site.install("raise RuntimeError('imported')", command="list")
    main(["list", "--help"])
    assert "Print the names of campaigns" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count("\n  list ") == 1


def test_name_that_two_distributions_bring_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody's command is run by chance of the path's order."""
    site.install()
    site.install(distribution="zinc-store")
    assert main(["greet"]) == 2
    printed = capsys.readouterr().err
    assert "not clear which is meant" in printed
    assert "of tin-store 1.2" in printed
    assert "of zinc-store 1.2" in printed
    assert main(["--help"]) == 0


def test_first_distribution_of_a_name_counts(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second copy of a distribution further down the path is shadowed, as its modules are."""
    site.install()
    (tmp_path / "front").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "front"))
    front = Site(tmp_path / "front")
    front.install(GREET.replace("return code", "return 4"), distribution="Tin_Store")
    assert main(["greet"]) == 4


def test_help_hides_what_is_hidden(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A hidden command can be run and is not listed."""
    site.install(GREET.replace("command()", "command(hidden=True)"), command="greet-hidden")
    assert main(["--help"]) == 0
    assert "greet-hidden" not in capsys.readouterr().out
    assert main(["greet-hidden"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["list"], ["list", "--help"], ["--version"], ["--nothing"]])
def test_built_in_commands_never_look_for_others(site: Site, arguments: list[str]) -> None:
    """Neither the installed module nor what finds it is imported where it is not asked for."""
    module = site.install()
    # --version is click's own, which reads the version of the distribution that way.
    watched = {module} if arguments == ["--version"] else {module, "importlib.metadata"}
    code = (
        "import sys; from harness.cli import main; main(sys.argv[1:]); "
        f"print(sorted({watched!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=site.folder,
        env=site.environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code"),
    [("KeyboardInterrupt", 3), ("click.Abort", 3), ("SystemExit(6)", 6)],
)
def test_command_may_be_stopped_or_leave(site: Site, error: str, code: int) -> None:
    """Ctrl-C and a prompt without an answer are an interruption; sys.exit is an exit code."""
    site.install(RAISING.format(error=error))
    done = site.run("greet")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == ("crashconform: interrupted\n" if code == 3 else "")


@pytest.mark.slow
def test_signal_stops_an_installed_command(site: Site) -> None:
    """A command that waits is ended by SIGTERM as an interruption."""
    source = """
import sys, time
import click
@click.command()
def greet():
    print("hello", flush=True)
    while True: time.sleep(0.01)
"""
    site.install(source)
    with subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "greet"],
        cwd=site.folder,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (3, "crashconform: interrupted\n")


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_bug(site: Site) -> None:
    """The reader of an endless answer leaves: the command is stopped and nothing is said."""
    site.install(GREET.replace('click.echo("hello")', 'while True: print("hello" * 1000)'))
    with subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "greet"],
        cwd=site.folder,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello" * 1000 + "\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 3
