"""
A campaign that is itself wrong: nothing is explored, and one paragraph says what to do.

Each case names what it does wrong, and what must stand in the message: the thing, what was
expected, what to do about it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import run_body

from harness.errors import ConfigurationError

STEP = "run.step('one', lambda: save(root / 's', 1), then=1)"

CASES: dict[str, tuple[str, list[str]]] = {
    "prepare raises": (
        "def prepare(self, root, run): raise ValueError('no disk')",
        [
            "prepare raised ValueError: no disk",
            "so it must return: correct the campaign",
            "tested.py",
        ],
    ),
    "prepare ends the process": (
        "def prepare(self, root, run): print('bye', flush=True); os._exit(0)",
        ["prepare ended by itself with status 0", "so it must return: correct the campaign", "bye"],
    ),
    "prepare leaves a process": (
        "def prepare(self, root, run): save(root / 's', 0); subprocess.Popen(['sleep', '60'])",
        ["prepare left a process behind", "sleep 60"],
    ),
    "execute raises": (
        "def execute(self, root, run): run.step('one', lambda: 1 / 0)",
        [
            "execute raised ZeroDivisionError",
            "so it must return: correct the campaign",
            "tested.py",
        ],
    ),
    "execute goes on after a failed step": (
        f"""
        def execute(self, root, run):
            try: run.step('bad', lambda: 1 / 0)
            except ZeroDivisionError: pass
            {STEP}
        """,
        ["step 'bad' raised ZeroDivisionError", "went on to step 'one'", "raises="],
    ),
    "execute ends after a failed step": (
        f"""
        def execute(self, root, run):
            {STEP}
            try: run.step('bad', lambda: 1 / 0)
            except ZeroDivisionError: pass
        """,
        ["step 'bad' raised ZeroDivisionError", "returned all the same", "raises="],
    ),
    "no step": (
        "def execute(self, root, run): save(root / 's', 1)",
        ["execute has no step", "run.step(label, action)"],
    ),
    "observe missing": (
        f"class Tested(Campaign):\n    def execute(self, root, run): {STEP}",
        ["Tested lacks observe(self, root)", "JSON"],
    ),
    "observe raises on the fixture": (
        "def prepare(self, root, run): pass",
        [
            "observe, on the fixture, raised FileNotFoundError",
            "so it must return: correct the campaign",
        ],
    ),
    "observe returns a set": (
        "def observe(self, root): return {'jobs': [{1, 2}]}",
        ["the observation.jobs[0] is {1, 2} of type set", "sort a set into a list"],
    ),
    "observe returns bytes": (
        "def observe(self, root): return [b'x']",
        ["the observation[0] is b'x' of type bytes", "hex"],
    ),
    "observe has keys that are no strings": (
        "def observe(self, root): return {1: 2}",
        ["the observation has the key 1 of type int", "must be strings"],
    ),
    "observe returns no number": (
        "def observe(self, root): return float('nan')",
        ["the observation is nan", "use a string"],
    ),
    "observe differs by itself": (
        "def observe(self, root): return time.monotonic_ns()",
        ["observe differs by itself", "called twice on the fixture", "such as times"],
    ),
    "promise without judge": (
        "def prepare(self, root, run): save(root / 's', 0); run.promise('kept', key='a')",
        ["promise 'kept' has no judge", "promised_kept(self, root, evidence, *, key)"],
    ),
    "facts do not fit the judge": (
        """
        def prepare(self, root, run): save(root / 's', 0); run.promise('kept', key='a')
        def promised_kept(self, root, evidence, *, name): return True
        """,
        ["promise 'kept' has the facts ['key']", "signature of promised_kept", "'name'"],
    ),
    "facts are no JSON": (
        """
        def prepare(self, root, run): save(root / 's', 0); run.promise('kept', key={1})
        def promised_kept(self, root, evidence, *, key): return True
        """,
        ["promise kept.key is {1} of type set"],
    ),
    "withdraw of nothing": (
        f"def execute(self, root, run): {STEP}; run.withdraw('kept', key='a')",
        ["withdraw('kept', {'key': 'a'}) ends no promise"],
    ),
    "effect without delivery": (
        "def execute(self, root, run): run.step('one', lambda: run.effect('mail', id=1))",
        ["effect 'mail' has no contract", "add it to delivery", "at-most-once"],
    ),
    "effect outside a step": (
        f"""
        delivery = {{'mail': 'at-most-once'}}
        def execute(self, root, run): {STEP}; run.effect('mail', id=1)
        """,
        ["effect 'mail' stands outside a step", "default resume would repeat it", "resume()"],
    ),
    "at-least-once that nothing promises": (
        """
        delivery = {'mail': 'at-least-once'}
        def execute(self, root, run):
            run.step('one', lambda: (save(root / 's', 1), run.effect('mail', id=1)), then=1)
        """,
        ["delivery 'mail' is at-least-once, but nothing promises 'mail'", "run.promise('mail'"],
    ),
    "at-least-once that nothing promises, recovery included": (
        f"""
        delivery = {{'mail': 'at-least-once'}}
        def execute(self, root, run): {STEP}
        def recover(self, root, run): pass
        """,
        ["delivery 'mail' is at-least-once, but nothing promises 'mail'", "run.promise('mail'"],
    ),
    "a contract that does not exist": (
        "delivery = {'mail': 'twice'}",
        ["Tested.delivery['mail']='twice'", "must be one of", "exactly-once"],
    ),
    "delivery is no mapping": (
        "delivery = ['mail']",
        ["Tested.delivery=['mail'] must be a dict", "contract"],
    ),
    "a durability that does not exist": (
        "durability = 'some'",
        ["Tested.durability='some' must be one of ('full', 'consistent', 'cache')"],
    ),
    "volatile is one string": (
        "volatile = '*-shm'",
        ["Tested.volatile='*-shm' must be a list or tuple of strings"],
    ),
    "a judge returns no bool": (
        """
        def prepare(self, root, run): save(root / 's', 0); run.promise('kept')
        def promised_kept(self, root, evidence): return 1
        """,
        ["promised_kept returned 1", "must return True or False"],
    ),
    "a judge raises in the control run": (
        """
        def prepare(self, root, run): save(root / 's', 0); run.promise('kept')
        def promised_kept(self, root, evidence): raise KeyError('x')
        """,
        ["on the finished execution", "promised_kept raised", "KeyError"],
    ),
    "complete returns no bool": (
        "def complete(self, root, evidence): return None",
        ["complete returned None", "must return True or False"],
    ),
    "complete raises in the control run": (
        "def complete(self, root, evidence): raise KeyError('x')",
        ["on the finished execution, after resume, complete raised", "KeyError"],
    ),
    "check raises in the control run": (
        "def check(self, root, evidence): raise KeyError('x')",
        ["on the finished execution, after recovery, check raised", "KeyError"],
    ),
    "check yields something else": (
        "def check(self, root, evidence): yield 'fine', True",
        ["check yielded ('fine', True)", "yield Check(invariant, holds, message)"],
    ),
    "check yields no bool": (
        "def check(self, root, evidence): yield Check('fine', 1)",
        ["check yielded Check(invariant='fine', holds=1", "with a bool"],
    ),
    "check returns a bool": (
        "def check(self, root, evidence): return True",
        ["check returned True", "yield Check(invariant, holds, message)"],
    ),
    "observe raises in the control run": (
        """
        def recover(self, root, run): (root / 's').unlink()
        """,
        ["on the finished execution, after recovery, observe raised FileNotFoundError"],
    ),
    "step in prepare": (
        f"def prepare(self, root, run): {STEP}",
        ["step 'one' was called in prepare", "only execute and resume have steps"],
    ),
    "step in recover": (
        "def recover(self, root, run): run.step('again', lambda: None)",
        ["step 'again' was called in recover", "only execute and resume have steps"],
    ),
    "nested steps": (
        "def execute(self, root, run): run.step('out', lambda: run.step('in', lambda: None))",
        ["step 'in' was called while step 'out' had not returned", "do not nest"],
    ),
    "a label twice": (
        f"def execute(self, root, run): {STEP}; {STEP}",
        ["label='one' names two steps", "unique"],
    ),
    "an empty label": (
        "def execute(self, root, run): run.step(' ', lambda: None)",
        ["label=' ' of a step must be a string"],
    ),
    "an action that was called already": (
        "def execute(self, root, run): run.step('one', 3)",
        ["the action of step 'one' is 3, which cannot be called", "lambda: ..."],
    ),
    "a retry that does not exist": (
        "def execute(self, root, run): run.step('one', lambda: None, retry='twice')",
        ["retry='twice' of step 'one' must be one of", "unless_present"],
    ),
    "then is ANYTHING": (
        "def execute(self, root, run): run.step('one', lambda: None, then=ANYTHING)",
        ["then=ANYTHING of step 'one'", "UNCHANGED", "between=ANYTHING"],
    ),
    "then is no JSON": (
        "def execute(self, root, run): run.step('one', lambda: None, then={1})",
        ["then of step 'one' is {1} of type set"],
    ),
    "between is a string": (
        "def execute(self, root, run): run.step('one', lambda: None, between='abc')",
        ["between='abc' of step 'one' must be a list of observations or ANYTHING"],
    ),
    "between is a function": (
        "def execute(self, root, run): run.step('one', lambda: None, between=[print])",
        ["between[0] of step 'one' is <built-in function print>"],
    ),
    "sleep backwards": (
        "def execute(self, root, run): run.sleep(-1)",
        ["seconds=-1 of run.sleep must not be negative"],
    ),
    "an attribute set in a phase": (
        "def prepare(self, root, run): save(root / 's', 0); self.handle = 1",
        ["Tested.handle was set", "different processes", "store's files"],
    ),
    "an attribute set in __init__": (
        "def __init__(self): self.handle = 1",
        ["Tested.handle was set", "different processes", "store's files"],
    ),
    "an __init__ with arguments": (
        "def __init__(self, size): pass",
        ["Tested() cannot be made", "without arguments", "leave __init__ out"],
    ),
    "a signature that lacks an argument": (
        "def recover(self, root): pass",
        ["Tested.recover is called as recover(root, run)", "def recover(self, root, run)"],
    ),
    "a phase that is a generator": (
        "def execute(self, root, run): yield 1",
        ["Tested.execute is a generator", "does nothing when it is called", "plain method"],
    ),
    "a method that is none": (
        "resume = None",
        ["Tested.resume=None must be a method"],
    ),
    "after_recovery is not idempotent": (
        "def after_recovery(self, expected): return expected + 1",
        ["after_recovery is not idempotent", "expected 1, observed 2"],
    ),
    "after_recovery changes its argument": (
        """
        def execute(self, root, run): run.step('one', lambda: save(root / 's', [1]), then=[1])
        def after_recovery(self, expected):
            if isinstance(expected, list): expected.append(1)
            return expected
        """,
        ["after_recovery is not idempotent", "$[2]: expected nothing, observed 1"],
    ),
    "after_recovery does not know a state between": (
        """
        def execute(self, root, run):
            run.step('one', lambda: save(root / 's', 1), then=1, between=[None])
        def after_recovery(self, expected): return min(expected, 9)
        """,
        ["after_recovery raised TypeError", "so it must return: correct the campaign"],
    ),
    "a cache that is no object": (
        "durability = 'cache'",
        ["durability='cache' needs an observation that is an object", "returned a int"],
    ),
    "a spoil that raises": (
        "def spoil(self, root): raise KeyError('x')",
        ["spoil raised KeyError", "so it must return: correct the campaign"],
    ),
    "a misspelled name in recover": (
        "def recover(self, root, run): sav(root / 's', 0)",
        ["the campaign cannot run: NameError: name 'sav' is not defined", "tested.py"],
    ),
    "a misspelled name in a check": (
        "def check(self, root, evidence): yield Chek('fine', True)",
        ["the campaign cannot run: NameError: name 'Chek' is not defined"],
    ),
    "a missing module in resume": (
        "def resume(self, root, run): import no_such_module",
        ["the campaign cannot run: ModuleNotFoundError: No module named 'no_such_module'"],
    ),
    "a missing module in a judge": (
        """
        def prepare(self, root, run): save(root / 's', 0); run.promise('kept')
        def promised_kept(self, root, evidence): import no_such_module
        """,
        ["the campaign cannot run: ModuleNotFoundError: No module named 'no_such_module'"],
    ),
    "resume takes another path": (
        """
        def execute(self, root, run):
            size = load(root / 's')
            run.step(f'from {size}', lambda: save(root / 's', 1), then=1)
        """,
        ["resume reached step 'from 1', which the recorded workload does not have", "resume()"],
    ),
    "resume leaves steps out": (
        """
        def execute(self, root, run):
            if load(root / 's') == 0: run.step('one', lambda: save(root / 's', 1), then=1)
            run.step('two', lambda: save(root / 's', 2), then=2)
        """,
        ["resume did not reach the acknowledged steps ['one']", "resume()"],
    ),
    "a result that died is used": (
        """
        def execute(self, root, run):
            guard = run.step('one', lambda: save(root / 's', 1) or object(), then=1)
            run.step('two', lambda: save(root / 's', 2 if guard else 3), then=2)
        """,
        ["the result of step 'one' was used after a crash", "no JSON", "resume()"],
    ),
    "a broken module": (
        "class Tested(_Base): nothing = undefined",
        ["tested.py cannot be imported", "NameError"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_campaign_is_told_what_to_do(tmp_path: Path, case: str) -> None:
    """The run ends with a configuration error that names thing, expectation and remedy."""
    body, parts = CASES[case]
    with pytest.raises(ConfigurationError) as caught:
        run_body(tmp_path, body)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert message.startswith("tested: ")
