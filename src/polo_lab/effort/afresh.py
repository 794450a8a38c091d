"""One stage of an honest run, in a process of its own: what the next one knows is in the folder.

    python -m polo_lab.effort.afresh STAGE KEY FOLDER KERNELS

All that a case draws comes from its seed, so that every process makes the same case. `begin` trains
until it kills itself in the middle of a shard, `resume` goes on from the last one that was sealed,
`answer` draws a challenge and answers it, and `judge` verifies that and prints what it found. KEY
is a `Key` in JSON. KERNELS are those that a GPU trains with: `any`, or `repeating` ones. Whoever
runs steps again takes that from the record.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import polo
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.answer import answer
from polo_lab.effort.case import Case
from polo_lab.effort.catalogue import Key
from polo_lab.effort.training import train

ANY, REPEATING = "any", "repeating"
_CHALLENGE, _ANSWER = "challenge.json", "answer"


def last_step(case: Case) -> int:
    """How many steps `begin` makes: it dies in the middle of a shard, half-way through."""
    shard = case.plan.shard_steps(case.samples)
    return case.plan.shards // 2 * shard + shard // 2


class _Mortal:
    """A task whose training ends all at once, after so many steps."""

    def __init__(self, task: Any, steps: int) -> None:
        self._task, self._left = task, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train_step(self, *arguments: Any) -> None:
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        self._task.train_step(*arguments)


def begin(case: Case) -> None:
    """Train, and die."""
    task: Any = _Mortal(case.task, last_step(case))
    train(task, case.plan, case.enrol("victim"), case.folder / "victim")


def resume(case: Case) -> Mapping[str, Any]:
    """Go on from what was sealed, to the end."""
    return {"steps": case.victim.steps, "accuracy": case.victim.accuracy}


def respond(case: Case) -> None:
    """Draw a challenge and answer it."""
    proof, who = case.folder / "victim", case.enrol("victim")
    drawn = challenges.draw(proof)
    challenges.save(drawn, case.folder / _CHALLENGE)
    out = case.folder / _ANSWER
    answer(proof, drawn, task=case.task, data=who.source, key=who.key, out=out)


def judge(case: Case) -> Mapping[str, Any]:
    """Verify the answer; how much of it came out to the bit."""
    drawn = challenges.load(case.folder / _CHALLENGE)
    verdict = polo.verify(
        case.folder / "victim",
        trust=case.issuer.public_key,
        task=case.task,
        challenge=drawn,
        answer=case.folder / _ANSWER,
    )
    found = next((check.figures for check in verdict.checks if check.name == "draw"), {})
    return {
        "outcome": verdict.outcome.name.lower(),
        "headline": verdict.headline(),
        "segments": found.get("segments", 0),
        "asked": len(drawn.segments),
        "run": found.get("run", 0),
        "exact": found.get("exact", 0),
        "rerun": found.get("steps", 0),
        "sealings": len(drawn.sealings),
    }


STAGES: dict[str, Callable[[Case], Mapping[str, Any] | None]] = {
    "begin": begin,
    "resume": resume,
    "answer": respond,
    "judge": judge,
}
TRAINING = ("begin", "resume")


def main() -> None:
    """Do one stage; what it found goes to standard output."""
    stage, key, folder, kernels = sys.argv[1:]
    torch.set_num_threads(1)
    if stage in TRAINING:
        torch.backends.cudnn.deterministic = kernels == REPEATING
    found = STAGES[stage](Key(**json.loads(key)).case(Path(folder)))
    print(json.dumps(dict(found or {})))


if __name__ == "__main__":
    main()
