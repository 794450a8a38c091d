"""Games with answers: real training, and an answer that is not what was asked for."""

import shutil
from dataclasses import replace
from pathlib import Path

from polo.protocol.challenge import Challenge
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.effort.case import Attempt, Case, Respond

KINDS = ("silence", "another state", "other samples", "another answer", "left out")


class Game:
    """All steps are trained; the answer is tampered with.

    Args:
        kind: `silence` gives no answer; `another state` shows the state of another segment; `other
            samples` the samples of another; `another answer` that to another challenge; `left
            out` shows all but one segment.
    """

    knowledge = "the task"
    data = "the task's own"
    budget = "all steps"

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.name = f"answering game, {kind}"
        self.description = {
            "silence": "trains all steps, and does not answer",
            "another state": "trains all steps, and shows one segment's state for another's",
            "other samples": "trains all steps, and shows one segment's samples for another's",
            "another answer": "trains all steps, and gives the answer to another challenge",
            "left out": "trains all steps, and leaves one segment out of the answer",
        }[kind]

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        forgery = Forgery(case, folder)
        forgery.begin()
        for _ in range(forgery.shards):
            forgery.train(forgery.segments)
            forgery.seal()
        done = forgery.finish()
        if self._kind == "silence" or done.respond is None:
            return replace(done, respond=None)
        return replace(done, respond=self._tampered(done.respond))

    def _tampered(self, honest: Respond) -> Respond:
        def respond(challenge: Challenge, out: Path) -> None:
            if self._kind == "another answer":
                honest(replace(challenge, made=challenge.made + 1), out)
                return
            honest(challenge, out)
            one, other = challenge.segments[0], challenge.segments[-1]
            part = "samples" if self._kind == "other samples" else "model"
            if self._kind == "left out":
                (out / other.file(part)).unlink()
            else:
                shutil.copy(out / one.file(part), out / other.file(part))

        return respond
