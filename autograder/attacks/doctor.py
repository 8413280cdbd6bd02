"""Whether this machine can grade a class: the whole corpus is tried before any submission is.

What it says is what was seen here and now, with the sandbox that a class would get.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict

from autograder.attacks.attack import Attack, attacks
from autograder.attacks.trial import PROMISES, Result, run_trial
from autograder.sandbox.choice import Sandbox, sandbox_of_a_class
from gearworks.errors import GearworksError


def chosen_attacks(names: Sequence[str]) -> list[Attack]:
    """These attacks; all of them without a name. Raises GearworksError for an unknown one."""
    known = {attack.name: attack for attack in attacks()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise GearworksError(f"there is no attack {unknown[0]!r}",
                             "the corpus is autograder/attacks/corpus", ", ".join(known))
    return [known[name] for name in names or known]


def examine(chosen: Sequence[Attack], sandbox: Sandbox, jobs: int | None = None,
            tell: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Try attacks side by side, in processes of their own, and give what each achieved.

    jobs: how many at once; many only wait. tell: is told of each as soon as it has ended.
    """
    jobs = jobs or 2 * (os.cpu_count() or 1)
    spawning = multiprocessing.get_context("spawn")     # nothing of this process's goes along
    found = {}
    with ProcessPoolExecutor(min(jobs, len(chosen)), mp_context=spawning) as pool:
        waiting = [pool.submit(_tried, attack, sandbox.name) for attack in chosen]
        for done in as_completed(waiting):
            result = done.result()
            found[result.attack.name] = result
            tell(result)
    return [found[attack.name] for attack in chosen]


def _tried(attack: Attack, kind: str) -> Result:
    return run_trial(attack, sandbox_of_a_class(kind))


def line(result: Result) -> str:
    """One attack in words, its result first."""
    if not result.broken:
        return f"held    {result.attack.name}: {result.attack.tries}"
    broken = "; ".join(PROMISES[name] for name in result.broken)
    return f"BROKEN  {result.attack.name}: {result.attack.tries}\n        {broken}"


def summary(results: Sequence[Result], sandbox: Sandbox) -> str:
    """What held, promise by promise, and what that means."""
    rows = [(says, sum(name in result.broken for result in results))
            for name, says in PROMISES.items()]
    width = max(len(says) for says, _ in rows)
    table = [f"  {says:<{width}}  {count or 'never'}" for says, count in rows]
    broken = sum(bool(result.broken) for result in results)
    verdict = ("All held." if not broken else
               f"{broken} did not hold: grade no class on this machine before they do.")
    return "\n".join([f"{len(results)} attacks in a sandbox of {sandbox.name}. How often:",
                      *table, verdict])


def as_json(results: Sequence[Result], sandbox: Sandbox) -> dict:
    """The same as one JSON object."""
    told = [asdict(result) | {"attack": result.attack.name, "tries": result.attack.tries}
            for result in results]
    return {"sandbox": sandbox.name, "held": not any(result.broken for result in results),
            "attacks": told}
