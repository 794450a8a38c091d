"""What reading and pressing must be like, whatever the scheme."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from polo.embedding.presses import Press
from polo.enrolment import capacity_of
from polo.errors import CapacityError
from polo.protocol.detection import MILLION
from polo.protocol.layout import Tensor
from polo.protocol.records import MAX_BITS, MAX_DENSE_WEIGHTS, Terms
from polo.testing.subject import Subject, fingerprint, weights_for
from polo.watermark import schemes
from polo.watermark.mark import Mark

_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


class SchemeConformance(Subject):
    """Tests of a scheme; give it a name.

    Attributes:
        seeds: Marks that unmarked weights are read with.
        sigmas: How many standard deviations their number of matches may be off.
    """

    seeds = 300
    sigmas = 4.5
    kinds: ClassVar[Sequence[str]] = ("normal", "all positive", "norm scales", "one rules")

    def test_it_is_a_scheme_of_its_name(self) -> None:
        """It is found by its name, has the interface, and says which tensors it wants."""
        found = schemes.scheme(self.scheme)
        assert isinstance(found, schemes.Scheme)
        assert found.name == self.scheme
        assert found.precision <= set(_TYPES)
        for shape in ((64,), (64, 64), (8, 8, 3, 3)):
            for norm in (True, False, None):
                said = found.objection(Tensor("layer.weight", "F32", shape), norm=norm)
                assert isinstance(said, str)

    def test_another_process_finds_the_same(self) -> None:
        """Bits, blocks, readings and gradients do not depend on the process."""
        code = (
            "import json, sys; from polo.testing.subject import fingerprint; "
            "print(fingerprint(sys.argv[1], json.loads(sys.argv[2])))"
        )
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code, self.scheme, json.dumps(dict(self.options))],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == fingerprint(self.scheme, self.options)

    if torch.cuda.is_available():

        def test_every_device_finds_the_same(self) -> None:
            """Gradients agree to single precision on a GPU, and finished weights to the bit."""
            terms = self.terms()
            mark = self.mark(terms)
            values = torch.from_numpy(weights_for(mark)).float()
            gradient = self.press(mark, terms).gradient(values)
            finished = self.press(mark, terms).finish(values)
            pressing = self.press(mark, terms, "cuda")
            other = pressing.gradient(values.cuda()).cpu()
            assert _distance(other, gradient) <= 1e-5
            assert torch.equal(pressing.finish(values.cuda()), finished)

    def test_the_capacity_that_is_stated_can_be_used(self) -> None:
        """A mark of all bits that fit can be laid out and read; one step more is refused."""
        usual = self.terms()
        fits = capacity_of(self.task().build_model(), block=usual.scheme.block, scheme=self.scheme)
        assert usual.carrier == fits.names
        step = usual.scheme.bits_per_block * schemes.scheme(self.scheme).together
        most = min(fits.bits_at(usual.scheme.load), MAX_BITS // step * step)
        if usual.scheme.key == "dense":
            most = min(most, MAX_DENSE_WEIGHTS // fits.block * usual.scheme.bits_per_block)
        terms = self.terms(bits=most)
        mark = self.mark(terms)
        assert mark.groups * mark.group_bits == most
        assert len(set(mark.blocks)) == len(mark.blocks) == terms.scheme.blocks
        right = self.right(mark, weights_for(mark))
        assert right.shape == (mark.groups, mark.group_bits)
        refused = ""
        try:
            self.terms(bits=fits.bits_at(usual.scheme.load) + step)
        except CapacityError as error:
            refused = error.advice
        assert refused, "more bits than fit were not refused with advice"

    def test_unmarked_weights_match_by_luck(self) -> None:
        """Matches of unmarked weights over many marks have mean and variance of fair coins."""
        terms = self.terms()
        bits = terms.scheme.bits
        marks = list(self.marks(terms, self.seeds))
        for kind in self.kinds:
            values = weights_for(marks[0], 7, kind)
            found = np.array([self.right(mark, values).sum() for mark in marks])
            z = (found.sum() - self.seeds * bits / 2) / (self.seeds * bits / 4) ** 0.5
            assert abs(z) < self.sigmas, f"{kind}: {z:.1f} standard deviations from one half"
            spread = found.var(ddof=1) / (bits / 4)
            allowed = self.sigmas * (2 / (self.seeds - 1)) ** 0.5
            assert abs(spread - 1) < allowed, f"{kind}: {spread:.2f} times a binomial's variance"

    def test_the_opposite_mark_matches_the_opposite_bits(self) -> None:
        """Turning every bit of the mark turns every match: the null holds whatever the weights."""
        for number, kind in enumerate(self.kinds):
            mark = self.mark(self.terms())
            values = weights_for(mark, number, kind)
            assert (self.right(mark, values) ^ self.right(_opposite(mark), values)).all(), kind

    def test_weights_of_zero_match_nothing(self) -> None:
        """Neither a mark nor its opposite is found in nothing."""
        mark = self.mark(self.terms())
        nothing = np.zeros((len(mark.blocks), mark.scheme.block))
        assert not self.right(mark, nothing).any()
        assert not self.right(_opposite(mark), nothing).any()

    def test_reading_does_not_depend_on_the_type(self) -> None:
        """The same values read the same in single and in double precision."""
        mark = self.mark(self.terms())
        single = weights_for(mark).astype(np.float32)
        assert (self.right(mark, single) == self.right(mark, single.astype(np.float64))).all()

    def test_groups_are_read_alone_and_in_any_order(self) -> None:
        """What a group reads does not depend on which others are read with it."""
        own, mark = schemes.scheme(self.scheme), self.mark(self.terms())
        rows = weights_for(mark).reshape(mark.groups, -1)
        together = self.right(mark, rows)
        order = np.random.default_rng(1).permutation(mark.groups)
        assert (own.matches(mark, rows[order], order.tolist()) == together[order]).all()
        for group in range(min(mark.groups, 4)):
            alone = own.matches(mark, rows[group : group + 1], [group])
            assert (alone == together[group]).all()

    def test_huge_weights_saturate(self) -> None:
        """Weights beyond ±256 count as ±256, and no finite weight breaks the reading."""
        mark = self.mark(self.terms())
        for size in (1e4, 1e30, 1e300):
            values = weights_for(mark) * size
            cut = self.right(mark, np.clip(values, -256, 256))
            assert (self.right(mark, values) == cut).all()

    def test_rescaled_weights_read_the_same(self) -> None:
        """Found models may be rescaled; who looks for marks brings every group to size one."""
        mark = self.mark(self.terms())
        values = weights_for(mark)
        for factor in (2.0**-8, 2.0**4):
            assert (self.right(mark, values * factor) == self.right(mark, values)).all(), factor

    def test_the_gradient_is_that_of_the_loss(self) -> None:
        """The closed form equals what autograd makes of `loss` in double precision."""
        for reduction, every in (("sum", 1), ("mean", 4)):
            terms = self.terms(reduction=reduction, every=every)
            mark = self.mark(terms)
            pressing = self.press(mark, terms)
            for scale in (0.1, 1.0, 10.0):
                values = torch.from_numpy(weights_for(mark) * scale).requires_grad_()
                (expected,) = torch.autograd.grad(pressing.loss(values), values)
                found = pressing.gradient(values.detach().float())
                assert found.shape == values.shape
                assert _distance(found.double(), expected) <= 1e-4, (reduction, scale)

    def test_descent_presses_the_mark_in(self) -> None:
        """Small steps down the gradient lower the loss and turn wrong bits right."""
        terms = self.terms()
        mark = self.mark(terms)
        pressing = self.press(mark, terms)
        values = torch.from_numpy(weights_for(mark)).float()
        before, loss = self.right(mark, values).sum(), pressing.loss(values)
        for _ in range(40):
            gradient = pressing.gradient(values)
            values = values - 0.02 * values.norm() * gradient / gradient.norm().clamp(min=1e-30)
        assert pressing.loss(values) < loss
        assert self.right(mark, values).sum() > before

    def test_finishing_keeps_to_its_budget_and_loses_nothing(self) -> None:
        """No group moves farther than it may, no right bit is lost, and the same comes out."""
        for budget in (0.0, 0.1, 0.3):
            terms = self.terms(budget=budget)
            for number, mark in enumerate(self.marks(terms, 3)):
                self._finish(self.press(mark, terms), mark, number, budget)

    def _finish(self, pressing: Press, mark: Mark, number: int, budget: float) -> None:
        before = torch.from_numpy(weights_for(mark, number))
        kept = before.clone()
        after = pressing.finish(before)
        assert torch.equal(before, kept), "finishing changed the weights it was given"
        assert after.dtype == torch.float64
        assert torch.equal(after, pressing.finish(before)), "finishing twice gives two results"
        moved = (after - before).reshape(mark.groups, -1).norm(dim=1)
        norms = before.reshape(mark.groups, -1).norm(dim=1)
        assert (moved <= budget * norms * (1 + 1e-9)).all(), "finishing exceeds its budget"
        was, now = self.right(mark, before), self.right(mark, after)
        assert (now | ~was).all(), "finishing turned a right bit"
        assert not budget or now.sum() > was.sum(), "finishing turned nothing"

    def test_finishing_alone_can_press_a_mark(self) -> None:
        """With all the budget there is, every bit is right, and stays so in shorter types."""
        terms = self.terms(budget=1.0)
        mark = self.mark(terms)
        values = self.press(mark, terms).finish(torch.from_numpy(weights_for(mark)))
        assert self._rate(mark, values, terms) >= 0.99
        for name in sorted(schemes.scheme(self.scheme).precision):
            cast = values.float().to(_TYPES[name]).double()
            assert self._rate(mark, cast, terms) >= 0.99, f"{name} loses the mark"

    def _rate(self, mark: Mark, values: torch.Tensor, terms: Terms) -> float:
        return float(self.right(mark, values).sum()) / terms.scheme.bits

    def test_its_defaults_make_terms(self) -> None:
        """Terms made of its defaults hold, and have its size and load."""
        terms = self.terms()
        terms.check()
        usual = schemes.scheme(self.scheme).defaults
        if not self.options:
            assert terms.scheme.bits == usual.bits
            assert terms.scheme.load == round(usual.load * MILLION)


def _opposite(mark: Mark) -> Mark:
    turned = dataclasses.replace(mark)
    # The bits of a mark are worked out when first asked for, and kept here.
    turned.__dict__["bits"] = ~mark.bits
    return turned


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))
