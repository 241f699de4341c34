"""
Boundaries per second of each of the run store's campaigns, and where the time goes.

Method: this process becomes a zygote itself, so that each child of a phase can be timed from
outside: from before the fork until its answer is read. What is left is the harness between the
children: copies, comparisons, reports. Run as ``python -m tests.benchmarks.bench_phases``.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness import observe
from harness.process import become_zygote
from tests.benchmarks.measuring import (
    LIGHT_APSW,
    PROJECT,
    Worker,
    arguments,
    light,
    print_machine,
    recorded,
    run_store,
    spread,
)

_PHASES = {
    "kill_at": "execute",
    "_recover": "recover",
    "check_databases": "sqlite check",
    "run_judge": "judge",
    "_demand_same_observation": "observe again",
    "_resume": "resume",
}


def main() -> None:
    """Measure and print, each campaign in a process of its own."""
    is_smoke = arguments(__doc__).smoke
    from harness.workdir import Workdir

    campaigns = [light(LIGHT_APSW)] if is_smoke else [light(LIGHT_APSW), *run_store()]
    with Workdir.choose(None, 3) as workdir:
        print_machine(workdir.folder)
        for found in campaigns:
            with recorded(found, workdir) as worker:
                _show(worker, workdir.worker_folder(2, "root").parent, 6 if is_smoke else 40)


def _show(worker: Worker, folder: Path, count: int) -> None:
    total = len(worker.recording.lines)
    boundaries = spread(total, count)
    rate = len(boundaries) / worker.seconds_for(boundaries)
    print(f"{worker.found.name}: {len(boundaries)} of {total}, {rate:.1f} boundaries/s", flush=True)
    pid = os.fork()
    if pid == 0:
        try:
            _trace_phases(worker, folder, boundaries)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(1)


def _trace_phases(worker: Worker, folder: Path, boundaries: list[int]) -> None:
    sys.stdout.flush()
    become_zygote()
    observe.install()
    sys.path.insert(0, str(PROJECT))
    from harness.discovery import load
    from harness.recording import first_run, record
    from harness.stage import Stage
    from harness.verify import examine

    stage = Stage(load(worker.found), folder / "root", folder / "side", 30.0)
    stage.side.mkdir(exist_ok=True)
    first_run(stage)
    recording = record(stage)
    seconds: dict[str, float] = defaultdict(float)
    children: dict[str, int] = defaultdict(int)
    run = stage.run

    def timed(*arguments: Any, **options: Any) -> Any:
        phase = _PHASES.get(sys._getframe(1).f_code.co_name, "other")
        started = time.perf_counter()
        end = run(*arguments, **options)
        seconds[phase] += time.perf_counter() - started
        children[phase] += 1
        return end

    stage.run = timed  # type: ignore[method-assign]
    started = time.perf_counter()
    for boundary in boundaries:
        assert examine(stage, recording, boundary).kind == "survived"
    whole = time.perf_counter() - started
    for phase, spent in seconds.items():
        each = spent / len(boundaries) * 1e3
        number = children[phase] / len(boundaries)
        print(f"  {phase:14} {number:4.1f} children {each:7.2f} ms  {spent / whole:4.0%}")
    rest = whole - sum(seconds.values())
    print(f"  {'in between':14}               {rest / len(boundaries) * 1e3:7.2f} ms", flush=True)


if __name__ == "__main__":
    main()
