"""Obfuscation: where the noise goes, how it is distributed, what it follows from."""

import hashlib
import hmac
import math
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import polo
from polo.privacy import noising, obfuscation
from polo.protocol import derivation, sampler
from polo.protocol.records import identity_of
from polo.storage.folder import ProofFolder
from polo.watermark import carrier_of, derive
from polo.weights import checkpoint_of

SEED = hashlib.sha256(b"noise").digest()
Array = np.ndarray[Any, Any]
Enrol = Callable[..., polo.OfflineEnrolment]


def deviations(elements: int, fraction: int = 1_000_000, tensor: int = 0) -> Array:
    """Deviations in units of σ."""
    found = obfuscation.noise(SEED, tensor, elements, fraction)
    return found[found != obfuscation.UNTOUCHED] / 64


def noisy(
    values: Array,
    *,
    seed: bytes = SEED,
    tensor: int = 0,
    fraction: int = 10**6,
    sigma: int = 20_000,
    spared: Array | None = None,
) -> Array:
    """Weights with noise."""
    drawn = obfuscation.noise(seed, tensor, values.size, fraction)
    drawn[[] if spared is None else spared] = obfuscation.UNTOUCHED
    found = torch.from_numpy(values.copy())
    noising.obfuscate(found, drawn, sigma)
    return found.numpy()


def test_a_million_samples_look_gaussian() -> None:
    sample = deviations(1_000_000)
    count = len(sample)
    assert count == 1_000_000
    assert abs(sample.mean()) < 4.5 / math.sqrt(count)
    assert abs(sample.var() - 1) < 4.5 * math.sqrt(2 / count)
    assert abs(stats.skew(sample)) < 4.5 * math.sqrt(6 / count)
    assert abs(stats.kurtosis(sample)) < 4.5 * math.sqrt(24 / count)
    assert abs(sample).max() < 6
    assert abs(sample).max() > 4.2


def test_the_distribution_function_is_the_normal_one() -> None:
    """Kolmogorov and Smirnov; the steps of 1/64 σ are spread out first."""
    sample = deviations(1_000_000)
    spread = sample + np.random.default_rng(0).uniform(-0.5, 0.5, len(sample)) / 64
    assert stats.kstest(spread, "norm").pvalue > 1e-4


def test_leading_bits_settle_what_thresholds_say() -> None:
    """Whatever lies next to a threshold, and a sample of everything else."""
    near = [t + d for t in sampler.table() for d in (-1, 0, 1) if 0 <= t + d < 2**63]
    words = np.array([u + sign for u in near for sign in (0, 2**63)], dtype=np.uint64)
    random = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    words = np.concatenate([words, random])
    expected = [
        (-1 if int(word) >> 63 else 1) * bisect_right(sampler.table(), int(word) % 2**63)
        for word in words
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derivation, "stream", lambda *_: words.tobytes())
        assert obfuscation.deviations(SEED, 0, len(words)).tolist() == expected


def test_neither_neighbours_nor_signs_nor_tensors_hang_together() -> None:
    one, other = deviations(200_000), deviations(200_000, tensor=1)
    limit = 4.5 / math.sqrt(len(one))
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < limit
    assert abs(np.corrcoef(one, other)[0, 1]) < limit
    assert abs((one > 0).mean() - (one < 0).mean()) < 2 * limit


@pytest.mark.parametrize("fraction", [0, 3_906, 100_000, 500_000, 999_999, 1_000_000])
def test_the_fraction_is_kept_to_a_two_hundred_and_fifty_sixth(fraction: int) -> None:
    elements = 300_000
    touched = len(deviations(elements, fraction))
    share = fraction * 256 // 1_000_000 / 256
    assert abs(touched / elements - share) <= 4.5 * math.sqrt(share * (1 - share) / elements)
    assert fraction / 1e6 - 1 / 256 < share <= fraction / 1e6


def test_pieces_cover_a_tensor_of_any_size() -> None:
    for elements in (0, 1, 65_535, 65_536, 65_537, 200_000):
        found = obfuscation.noise(SEED, 0, elements, 10**6)
        assert found.shape == (elements,)
        assert not (found == obfuscation.UNTOUCHED).any()


def test_noise_of_a_piece_does_not_depend_on_what_follows_it() -> None:
    short = obfuscation.noise(SEED, 0, 65_536, 100_000)
    long = obfuscation.noise(SEED, 0, 300_000, 100_000)
    assert np.array_equal(short, long[:65_536])


def test_everything_follows_from_secret_nonce_and_tensor() -> None:
    values = np.random.default_rng(0).normal(size=5_000)

    def found(secret: bytes = b"s" * 32, nonce: bytes = b"n" * 32, tensor: int = 3) -> Array:
        seed = obfuscation.noise_seed(secret, nonce)
        return noisy(values, seed=seed, tensor=tensor, fraction=10**5)

    assert np.array_equal(found(), found())
    for other in (found(secret=b"t" * 32), found(nonce=b"m" * 32), found(tensor=4)):
        assert not np.array_equal(found(), other)


def test_sigma_is_relative_to_the_root_mean_square() -> None:
    random = np.random.default_rng(1)
    for size in (1e-6, 0.03, 1.0, 500.0):
        values = random.normal(size=200_000) * size + size
        rms = math.sqrt((values**2).mean())
        scale = obfuscation.scale_of(values, 20_000)
        assert scale == pytest.approx(0.02 * rms, rel=2**-8)
        assert (noisy(values) - values).std() == pytest.approx(scale, rel=0.01)


def test_the_scale_has_eight_binary_digits_and_survives_small_errors() -> None:
    random = np.random.default_rng(2)
    moved = 0
    for _ in range(500):
        values = random.normal(size=300) * 10 ** random.uniform(-6, 3)
        scale = obfuscation.scale_of(values, 20_000)
        mantissa, _ = math.frexp(scale)
        assert mantissa * 256 == int(mantissa * 256)
        moved += scale != obfuscation.scale_of(values * (1 + 1e-12), 20_000)
        moved += scale != obfuscation.scale_of(values[::-1].copy(), 20_000)
        moved += scale != obfuscation.scale_of(np.asfortranarray(values.reshape(20, 15)), 20_000)
    assert moved == 0


def test_scale_rounds_to_nearest() -> None:
    for wanted, expected in (
        (0.5, 0.5),
        (0.5 + 2**-9 * 0.9, 0.5),
        (0.5 + 2**-9 * 1.1, 0.5 + 2**-8),
    ):
        assert obfuscation.scale_of(np.array([wanted]), 1_000_000) == expected
    # Rounding up may carry into the next power of two.
    assert obfuscation.scale_of(np.array([0.9999]), 1_000_000) == 1.0


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_and_zeros_get_no_noise(values: list[float]) -> None:
    array = np.array(values)
    assert obfuscation.scale_of(array, 20_000) == 0
    assert noisy(array).tolist() == values


def test_spared_weights_stay_to_the_last_bit() -> None:
    values = np.random.default_rng(3).normal(size=10_000)
    spared = np.arange(2_000, 4_000)
    found = noisy(values, spared=spared)
    assert np.array_equal(found[spared], values[spared])
    changed = found != values
    assert changed[:2_000].mean() > 0.98
    assert changed[4_000:].mean() > 0.98


def test_weights_get_the_same_noise_wherever_they_lie() -> None:
    """In strips, in another order of memory, and in any type, whose rounding is the last thing."""
    values = torch.randn(64, 3, 40, 40, generator=torch.Generator().manual_seed(4))
    drawn = obfuscation.noise(SEED, 0, values.numel(), 500_000)
    whole = values.double().reshape(-1).numpy()
    step = obfuscation.scale_of(whole, 40_000) / 64
    expected = torch.from_numpy(
        np.where(drawn == obfuscation.UNTOUCHED, whole, whole + drawn * step)
    )
    assert values.numel() > 2 * noising._STRIPS["cpu"]
    for form in (torch.contiguous_format, torch.channels_last):
        found = torch.nn.Parameter(values.clone(memory_format=form))
        noising.obfuscate(found, drawn, 40_000)
        assert torch.equal(found.detach().reshape(-1), expected.float())
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        found = values.to(dtype)
        step = obfuscation.scale_of(found.double().numpy(), 40_000) / 64
        edited = found.double().reshape(-1) + torch.from_numpy(drawn * step)
        untouched = torch.from_numpy(drawn == obfuscation.UNTOUCHED)
        wanted = torch.where(untouched, found.reshape(-1), edited.to(dtype))
        noising.obfuscate(found, drawn, 40_000)
        assert torch.equal(found.reshape(-1), wanted)


def test_noise_drawn_ahead_is_the_noise() -> None:
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 300))
    layout, parameters = checkpoint_of(model).layout, dict(model.named_parameters())
    noise = noising.Noise(SEED, 250_000)
    noise.draw_ahead(parameters, layout)
    for at, tensor in reversed(list(enumerate(layout.tensors))):
        expected = obfuscation.noise(SEED, at, tensor.elements, 250_000)
        assert np.array_equal(noise.of(at, tensor.elements), expected)
    noise.close()
    # What was closed draws when it is asked.
    assert np.array_equal(noise.of(0, 400), obfuscation.noise(SEED, 0, 400, 250_000))


def test_noise_that_could_not_be_drawn_ahead_is_drawn_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(300, 400)
    layout, parameters = checkpoint_of(model).layout, dict(model.named_parameters())
    wanted = obfuscation.noise(SEED, 0, 400, 250_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no thread")))
        noise = noising.Noise(SEED, 250_000)
        noise.draw_ahead(parameters, layout)
    assert np.array_equal(noise.of(0, 400), wanted)
    with monkeypatch.context() as patch:
        patch.setattr(obfuscation, "noise", Mock(side_effect=MemoryError))
        noise = noising.Noise(SEED, 250_000)
        noise.draw_ahead(parameters, layout)
        for _ in range(2):
            with pytest.raises(MemoryError):
                noise.of(0, 400)
    assert np.array_equal(noise.of(0, 400), wanted)


def test_no_more_noise_is_drawn_ahead_than_memory_is_meant_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    layout, parameters = checkpoint_of(model).layout, dict(model.named_parameters())
    monkeypatch.setattr(noising, "_AHEAD", 115)
    noise = noising.Noise(SEED, 250_000)
    noise.draw_ahead(parameters, layout)
    assert sorted(noise._ahead) == [0, 1]
    monkeypatch.setattr(noising, "_AHEAD", 99)
    short = noising.Noise(SEED, 250_000)
    short.draw_ahead(parameters, layout)
    assert sorted(short._ahead) == [0, 2], "what is too large is left out, and nothing else"
    for at, tensor in enumerate(layout.tensors):
        expected = obfuscation.noise(SEED, at, tensor.elements, 250_000)
        assert np.array_equal(noise.of(at, tensor.elements), expected)


def test_secrets_of_shards_come_from_one_master() -> None:
    master = b"m" * 32
    secrets = [obfuscation.secret_of(master, shard) for shard in range(1, 50)]
    assert len(set(secrets)) == 49
    expected = hmac.digest(master, b"polo/shard-secret/1" + (7).to_bytes(4, "little"), "sha256")
    assert secrets[6] == expected
    commitment = obfuscation.secret_commitment(secrets[6])
    assert commitment == hashlib.sha256(b"\x0dpolo/secret/1" + secrets[6]).digest()


# In a whole proof.


class Odd(nn.Module):
    """A frozen layer, buffers of both kinds, and parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.norm = nn.BatchNorm1d(64)
        self.frozen = nn.Linear(64, 64)
        self.frozen.requires_grad_(False)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 4)
        self.register_buffer("scale", torch.rand(300) + 0.5)
        self.wide = nn.Parameter(torch.randn(300, dtype=torch.float64))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(points)))
        hidden = torch.relu(self.second(torch.relu(self.frozen(hidden))))
        return self.last(hidden) + (self.wide.float() * self.scale).mean()


@pytest.fixture
def before_and_after(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> tuple[Any, ...]:
    """Weights just before and just after sealing, and the mark's weights as a mask by name."""
    odd = type(task)(Odd)
    odd.name = "odd"
    torch.manual_seed(0)
    model = odd.build_model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    enrolment = enrol(task=odd, strength=1.0, budget=0.0, noise=(0.1, 0.1), noise_fraction=0.5)
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
    root = polo.weights.commit(checkpoint_of(model)).root
    with prover.attach(model, optimizer):
        task.train_epoch(model, optimizer)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        # So strong a mark needs no finishing step: what changes now is noise.
        assert prover.end_epoch().sealed
    after = model.state_dict()
    terms = enrolment.record.terms
    seed = derivation.seed(
        root=root,
        shard=1,
        nonce=enrolment.drawn[0].nonce,
        identity=identity_of(alice.public_key),
        terms=terms.digest,
    )
    layout = checkpoint_of(model).layout
    carrier = carrier_of(terms, layout)
    marked = {name: np.zeros(value.numel(), dtype=bool) for name, value in after.items()}
    for block in derive(terms, carrier, seed).blocks:
        where = carrier.locate(block)
        marked[layout.tensors[where.tensor].name][where.element : where.element + 256] = True
    master = prover._writer.secret
    prover.close()
    return before, after, marked, model, enrolment, master, tmp_path / "proof"


def test_noise_is_only_on_trained_floats_outside_the_mark(
    before_and_after: tuple[Any, ...],
) -> None:
    before, after, marked, model, *_ = before_and_after
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    touched = 0
    for name, value in after.items():
        changed = (value != before[name]).reshape(-1).numpy()
        if name not in trained:
            assert not changed.any(), name
            continue
        assert not changed[marked[name]].any(), name
        touched += int(changed.sum())
        outside = int((~marked[name]).sum())
        assert abs(changed.sum() - outside / 2) <= 5 * math.sqrt(outside / 4) + 3, name
    assert sum(int(mask.sum()) for mask in marked.values()) == 4 * 256
    assert touched > 2_000
    assert {"frozen.weight", "norm.running_mean", "norm.num_batches_tracked", "scale"} <= (
        set(after) - trained
    )


def test_noise_of_a_proof_has_its_declared_size_in_every_tensor(
    before_and_after: tuple[Any, ...],
) -> None:
    before, after, *_ = before_and_after
    for name in ("first.weight", "second.weight", "wide"):
        edit = (after[name] - before[name]).double().reshape(-1)
        edit = edit[edit != 0]
        rms = float(before[name].double().square().mean().sqrt())
        expected = 0.1 * rms
        assert float(edit.std()) == pytest.approx(expected, rel=4 / math.sqrt(len(edit)))


def test_an_auditor_who_gets_the_secret_can_replay_the_noise(
    before_and_after: tuple[Any, ...],
) -> None:
    before, after, marked, model, enrolment, master, _ = before_and_after
    secret = obfuscation.secret_of(master, 1)
    seed = obfuscation.noise_seed(secret, enrolment.drawn[0].nonce)
    layout = checkpoint_of(model).layout
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            expected = noisy(
                before[name].numpy().reshape(-1),
                seed=seed,
                tensor=layout.index[name],
                fraction=500_000,
                sigma=100_000,
                spared=np.flatnonzero(marked[name]),
            )
            assert np.array_equal(after[name].numpy().reshape(-1), expected), name


def test_every_secret_is_committed_to_one_record_earlier(
    make_proof: Callable[..., Any],
) -> None:
    made = make_proof(epochs=3, terms={"budget": 1.0})
    manifest = ProofFolder(made.path).manifest()
    master = (made.state_path / "secret").read_bytes()
    committed = [manifest.start.secret, *(shard.noise.next_secret for shard in manifest.shards)]
    assert len(committed) == 4
    for shard, commitment in enumerate(committed, start=1):
        assert commitment == obfuscation.secret_commitment(obfuscation.secret_of(master, shard))


@pytest.mark.parametrize("noise", [{"noise": (0.0, 0.0)}, {"noise_fraction": 0.0}])
def test_no_noise_means_no_change(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path, noise: dict[str, Any]
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(
        enrol(strength=1.0, budget=0.0, **noise), key=alice, store=tmp_path / "proof"
    )
    with prover.attach(model, optimizer):
        task.train_epoch(model, optimizer)
        before = polo.weights.commit(checkpoint_of(model)).root
        sealed = prover.end_epoch().sealed
        assert sealed.root == before
    prover.close()
