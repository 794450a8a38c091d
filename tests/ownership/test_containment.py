"""Who came first: honest lineage, and thieves who press old marks into a stolen copy."""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polo
from polo.errors import FormatError, PoloError, SignatureError
from polo.ownership import Comparison, Finding, Order, compare
from polo.protocol.records import Bundle, Manifest
from polo.storage.bundle import PUBLIC, whole, write_bundle
from polo.storage.folder import ProofFolder, checkpoint_path, nonce_path
from polo.weights.checkpoint import MemoryCheckpoint, checkpoint_of
from polo.weights.hashing import commit

State = dict[str, np.ndarray[Any, Any]]


def state_of(model: torch.nn.Module) -> State:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def model_of(task: Any, state: State) -> torch.nn.Module:
    model: torch.nn.Module = task.build_model()
    model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    return model


@pytest.fixture
def judge(issuer: polo.Identity, kit: Any, tmp_path: Path) -> Callable[..., Comparison]:
    def run(first: Path, second: Path, model: State | None = None, **options: Any) -> Comparison:
        found = None if model is None else kit.save(model, tmp_path / "model.safetensors")
        return compare(first, second, model=found, trust=issuer.public_key, **options)

    return run


def check_both_ways(
    judge: Callable[..., Comparison], winner: Path, loser: Path, model: State | None = None
) -> Comparison:
    """The order of the arguments does not matter."""
    result = judge(winner, loser, model)
    assert result.order is Order.FIRST, result.headline()
    turned = judge(loser, winner, model)
    assert turned.order is Order.SECOND, turned.headline()
    assert str(winner) in result.headline()
    assert str(winner) in turned.headline()
    return result


@pytest.fixture(scope="module")
def descendant(
    owner: Any, owned_task: Any, desks: Any, kit: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Somebody's own chain, honestly fine-tuned from the owner's finished model."""
    desk = desks(41)
    key = desk.person()
    model = model_of(owned_task, owner.state)
    terms = polo.make_terms(owned_task, bits=256, shards=4, strength=0.02)
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("descendant") / "proof"
    return kit.train_chain(path, key, desk.enrol(terms, key), model, owned_task, epochs=4)


@pytest.fixture(scope="module")
def unrelated(
    owned_task: Any, desks: Any, kit: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """An honest chain that has nothing to do with the owner."""
    desk = desks(42)
    key = desk.person()
    terms = polo.make_terms(owned_task, bits=256, shards=4, strength=0.02)
    torch.manual_seed(6)
    path = tmp_path_factory.mktemp("unrelated") / "proof"
    return kit.train_chain(
        path, key, desk.enrol(terms, key), kit.owned_model(), owned_task, epochs=4
    )


# Honest people


def test_the_ancestor_came_first(owner: Any, descendant: Any, judge: Any) -> None:
    result = check_both_ways(judge, owner.path, descendant.path)
    assert "CAME FIRST" in result.headline()
    assert result.first_in_second.looked == 5
    assert result.second_in_first.looked == 9
    assert result.second_in_first.finding is Finding.NO_CLAIM
    assert result.order.exit_code == 0


def test_the_ancestor_came_first_whichever_model_is_shown(
    owner: Any, descendant: Any, judge: Any, stranger: torch.nn.Module
) -> None:
    for model in (owner.state, descendant.state, state_of(stranger)):
        assert judge(owner.path, descendant.path, model).order is Order.FIRST


def test_unrelated_chains_are_unrelated(owner: Any, unrelated: Any, judge: Any) -> None:
    result = judge(owner.path, unrelated.path)
    assert result.order is Order.UNRELATED
    assert result.order.exit_code == 1
    assert "UNRELATED" in result.headline()
    assert "--model" in result.advice


@pytest.mark.slow
@pytest.mark.full
def test_of_unrelated_chains_the_one_whose_marks_are_there_owns_the_model(
    owner: Any, unrelated: Any, judge: Any, stranger: torch.nn.Module, owned_task: Any
) -> None:
    """Only after alignment: marks that seem absent may have been permuted out of sight."""
    plain = judge(owner.path, unrelated.path, owner.state)
    assert plain.order is Order.UNDECIDED
    assert "--align" in plain.advice
    aligned = functools.partial(judge, align=True, task=owned_task)
    result = check_both_ways(aligned, owner.path, unrelated.path, owner.state)
    assert "OWNS THE MODEL" in result.headline()
    check_both_ways(aligned, unrelated.path, owner.path, unrelated.state)
    assert judge(owner.path, unrelated.path, state_of(stranger)).order is Order.UNRELATED


def test_one_enrolment_is_not_compared_with_itself(
    owner: Any, judge: Any, kit: Any, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match="one enrolment"):
        judge(owner.path, owner.path)
    longer = tmp_path / "again"
    shutil.copytree(owner.path, longer)
    manifest = ProofFolder(longer).manifest()
    kit.sign_again(longer, owner.key, replace(manifest, outside=3))
    with pytest.raises(FormatError, match="one enrolment"):
        judge(owner.path, longer)


def test_thin_proofs_are_enough(
    owner: Any, descendant: Any, judge: Any, kit: Any, tmp_path: Path
) -> None:
    """Their last checkpoint is all there is to look at, and it is there."""
    thin = [keep_only(made, tmp_path / name, kit, {made_shards(made)})
            for made, name in ((owner, "a"), (descendant, "b"))]  # fmt: skip
    result = check_both_ways(judge, *thin)
    assert result.first_in_second.looked == 1


def made_shards(made: Any) -> int:
    return len(ProofFolder(made.path).manifest().shards)


def keep_only(made: Any, path: Path, kit: Any, numbers: set[int]) -> Path:
    """A copy of a proof that kept some checkpoints only, signed by its owner."""
    shutil.copytree(made.path, path)
    manifest = ProofFolder(path).manifest()
    kept = {checkpoint_path(number) for number in numbers}
    files = tuple(f for f in manifest.files if "checkpoints/" not in f.path or f.path in kept)
    kit.sign_again(path, made.key, replace(manifest, files=files))
    return path


def test_bundles_are_compared_like_folders(
    owner: Any, descendant: Any, judge: Any, tmp_path: Path
) -> None:
    bundles = []
    for made, name in ((owner, "a.polo"), (descendant, "b.polo")):
        folder = ProofFolder(made.path)
        write_bundle(folder, tmp_path / name, whole(folder.manifest()))
        bundles.append(tmp_path / name)
    result = check_both_ways(judge, *bundles, owner.state)
    assert result.proofs == tuple(map(str, bundles))
    assert result.in_model is not None
    assert [claim.proof for claim in result.in_model] == list(map(str, bundles))


def test_without_nonces_or_checkpoints_nothing_is_decided(
    owner: Any, descendant: Any, judge: Any, tmp_path: Path
) -> None:
    folder = ProofFolder(descendant.path)
    write_bundle(folder, tmp_path / "public.polo", PUBLIC)
    write_bundle(folder, tmp_path / "buyer.polo", Bundle("buyer", (2, 3)))
    for name in ("public.polo", "buyer.polo"):
        for model in (None, owner.state):
            result = judge(owner.path, tmp_path / name, model)
            assert result.order is Order.UNDECIDED, result.headline()
            assert result.advice


# The sleeper: an idle chain, registered early; all of its marks pressed into a stolen copy later


@dataclass(frozen=True)
class Sleeper:
    """A thief's idle chain, and the owner's model with all of the thief's marks in it."""

    path: Path
    key: polo.Identity
    enrolment: Any
    roots: list[bytes]
    stored: dict[int, MemoryCheckpoint]
    copy: State


@pytest.fixture(scope="module")
def sleeper(
    owner: Any, owned_task: Any, desks: Any, kit: Any, tmp_path_factory: pytest.TempPathFactory
) -> Sleeper:
    desk = desks(43)
    key = desk.person()
    terms = polo.make_terms(owned_task, bits=256, shards=8)
    enrolment = desk.enrol(terms, key)
    # Early: idle checkpoints that the thief commits to, honestly and in time.
    stored = {at: checkpoint_of(state_of(kit.train_plain(owned_task, 70 + at, epochs=1)))
              for at in range(7)}  # fmt: skip
    roots = [commit(checkpoint).root for checkpoint in stored.values()]
    path = tmp_path_factory.mktemp("sleeper") / "proof"
    layout = checkpoint_of(owner.model).layout
    kit.write_chain(path, key, enrolment, layout, roots, stored)
    # Late: the owner's finished model is stolen.
    stolen = model_of(owned_task, owner.state)
    kit.press_all(stolen, desk.claimant(path))
    return Sleeper(path, key, enrolment, roots, stored, state_of(stolen))


def test_the_stolen_copy_carries_both_chains_and_works(
    owner: Any, sleeper: Sleeper, owned_task: Any, issuer: Any, kit: Any, tmp_path: Path
) -> None:
    """The attack is a real one: by marks alone, and by accuracy, nobody could tell."""
    from polo.ownership import identify

    found = kit.save(sleeper.copy, tmp_path / "copy.safetensors")
    result = identify(found, [owner.path, sleeper.path], trust=issuer.public_key)
    assert [claim.finding for claim in result.claims] == [Finding.CLAIM] * 2
    assert "2 of 2 claims stand" in result.headline()
    eta = {claim.owner: claim.eta for claim in result.claims}
    assert eta[sleeper.key.id] > 0.95
    copy = model_of(owned_task, sleeper.copy)
    assert owned_task.evaluate(copy) > owned_task.evaluate(owner.model) - 0.1


def test_the_sleeper_loses_with_the_copy_as_the_model(
    owner: Any, sleeper: Sleeper, judge: Any
) -> None:
    result = check_both_ways(judge, owner.path, sleeper.path, sleeper.copy)
    assert "OWNS THE MODEL" in result.headline()
    assert "pressed in afterwards" in result.reason
    own, other = result.likeness
    assert own is not None
    assert other is not None
    assert own > 0.8
    assert abs(other) < 0.2


def extended(sleeper: Sleeper, path: Path, kit: Any, copy: State, *, store: bool = True) -> Path:
    """The thief commits to one more checkpoint."""
    last = checkpoint_of(copy)
    roots = [*sleeper.roots, commit(last).root]
    stored = dict(sleeper.stored) | ({len(sleeper.roots): last} if store else {})
    layout = last.layout
    done: Path = kit.write_chain(path, sleeper.key, sleeper.enrolment, layout, roots, stored)
    return done


def test_the_sleeper_loses_with_the_copy_in_its_chain(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path
) -> None:
    path = extended(sleeper, tmp_path / "extended", kit, sleeper.copy)
    for model in (None, sleeper.copy, owner.state):
        result = check_both_ways(judge, owner.path, path, model)
        assert "CAME FIRST" in result.headline()
        assert result.first_in_second.checkpoint == 7


def test_the_sleeper_loses_with_a_copy_that_it_trained_on(
    owner: Any, sleeper: Sleeper, owned_task: Any, judge: Any, kit: Any, tmp_path: Path
) -> None:
    model = model_of(owned_task, sleeper.copy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    owned_task.train_epoch(model, optimizer)
    check_both_ways(judge, owner.path, sleeper.path, state_of(model))
    path = extended(sleeper, tmp_path / "extended", kit, state_of(model))
    check_both_ways(judge, owner.path, path)


def test_a_sleeper_who_hides_the_copy_does_not_win(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path
) -> None:
    """It committed to the stolen copy and does not show it; what is hidden is not innocent."""
    path = extended(sleeper, tmp_path / "hidden", kit, sleeper.copy, store=False)
    for model in (None, sleeper.copy):
        for pair in ((owner.path, path), (path, owner.path)):
            result = judge(*pair, model)
            assert result.order is Order.UNDECIDED, result.headline()
            assert "verifier's bundle" in result.advice


def test_a_sleeper_who_hides_everything_does_not_win(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path
) -> None:
    shutil.copytree(sleeper.path, tmp_path / "bare")
    manifest = ProofFolder(sleeper.path).manifest()
    files = tuple(file for file in manifest.files if "checkpoints/" not in file.path)
    kit.sign_again(tmp_path / "bare", sleeper.key, replace(manifest, files=files))
    result = judge(owner.path, tmp_path / "bare", sleeper.copy)
    assert result.order is Order.UNDECIDED
    assert result.first_in_second.looked == 0


def swapped_in(
    path: Path, key: polo.Identity, kit: Any, number: int, checkpoint: MemoryCheckpoint
) -> Manifest:
    """A checkpoint replaced by another one, listed and signed, but not the committed one."""
    file = kit.put(path, checkpoint_path(number), kit.checkpoint_bytes(checkpoint))
    manifest = ProofFolder(path).manifest()
    files = tuple(file if f.path == file.path else f for f in manifest.files)
    manifest = replace(manifest, files=files)
    kit.sign_again(path, key, manifest)
    return manifest


def test_a_sleeper_who_shows_other_weights_than_it_committed_to_does_not_win(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path
) -> None:
    path = extended(sleeper, tmp_path / "changed", kit, sleeper.copy)
    swapped_in(path, sleeper.key, kit, 7, sleeper.stored[6])
    for model in (None, sleeper.copy):
        result = judge(owner.path, path, model)
        assert result.order is Order.UNDECIDED, result.headline()
        assert result.first_in_second.looked == 7


def test_nobody_gets_marks_into_checkpoints_that_another_committed_to(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path, desk: Any
) -> None:
    """A forged copy of the owner's proof, with the thief's marks in it, is not the owner's."""
    forged = tmp_path / "forged"
    shutil.copytree(owner.path, forged)
    marked = checkpoint_of(sleeper.copy)
    swapped_in(forged, owner.key, kit, 8, marked)
    result = judge(forged, sleeper.path, sleeper.copy)
    # Its root is not the committed one, so it does not count, whoever signed the list of files.
    assert result.second_in_first.finding is not Finding.CLAIM
    assert result.order is not Order.SECOND
    kit.sign_again(forged, desk.person(), ProofFolder(forged).manifest())
    with pytest.raises(SignatureError):
        judge(forged, sleeper.path)


@pytest.mark.parametrize("part", [0.25, 0.35, 0.5])
def test_a_sleeper_who_commits_to_a_blend_does_not_win(
    owner: Any, sleeper: Sleeper, judge: Any, kit: Any, tmp_path: Path, part: float
) -> None:
    """Enough of the copy to look like an ancestor, too little to carry the owner's marks."""
    idle = {t.name: sleeper.stored[6].tensor(at)
            for at, t in enumerate(sleeper.stored[6].layout.tensors)}  # fmt: skip
    blend = {
        name: np.asarray(part * value + (1 - part) * idle[name], value.dtype)
        for name, value in sleeper.copy.items()
    }
    path = extended(sleeper, tmp_path / "blend", kit, blend)
    for model in (None, sleeper.copy):
        assert judge(owner.path, path, model).order is not Order.SECOND
        assert judge(path, owner.path, model).order is not Order.FIRST


def permuted(state: State) -> State:
    """The same function from other weights."""
    state = {name: value.copy() for name, value in state.items()}
    rng = np.random.default_rng(9)
    for here, norm, there in (("0", "1", "3"), ("3", "", "5"), ("5", "", "7")):
        order = rng.permutation(128)
        names = [f"{here}.weight", f"{here}.bias"]
        if norm:
            names += [f"{norm}.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
        state |= {name: state[name][order] for name in names}
        state[f"{there}.weight"] = np.ascontiguousarray(state[f"{there}.weight"][:, order])
    return state


@pytest.mark.slow
def test_a_sleeper_who_permutes_the_copy_is_found_out_when_aligned(
    owner: Any, sleeper: Sleeper, owned_task: Any, judge: Any, kit: Any, tmp_path: Path, desk: Any
) -> None:
    """Without alignment the owner's marks cannot be seen in it, and the thief's can."""
    copy = model_of(owned_task, permuted(owner.state))
    assert owned_task.evaluate(copy) == pytest.approx(owned_task.evaluate(owner.model))
    kit.press_all(copy, desk.claimant(sleeper.path))
    path = extended(sleeper, tmp_path / "permuted", kit, state_of(copy))
    blind = judge(owner.path, path, state_of(copy))
    assert blind.first_in_second.finding is Finding.NO_CLAIM
    assert blind.order is Order.UNDECIDED
    assert "--align" in blind.advice
    result = judge(owner.path, path, state_of(copy), align=True, task=owned_task)
    assert result.order is Order.FIRST, result.headline()
    assert "aligned" in result.first_in_second.claim.how
    # With the copy as the model alone, the thief does not win.
    alone = judge(owner.path, sleeper.path, state_of(copy), align=True, task=owned_task)
    assert alone.in_model is not None
    assert alone.in_model[0].finding is Finding.CLAIM
    assert alone.order is not Order.SECOND


def test_marks_in_each_others_checkpoints_decide_nothing(
    owner: Any, owned_task: Any, desk: Any, kit: Any, judge: Any, tmp_path: Path
) -> None:
    """Two who work together, offline: either one's last weights carry both one's marks."""
    layout = checkpoint_of(owner.model).layout
    terms = polo.make_terms(owned_task, bits=256, shards=6)
    made = []
    for name in ("x", "y"):
        key = desk.person()
        enrolment = desk.enrol(terms, key)
        roots = desk.roots(7)
        path = kit.write_chain(tmp_path / f"{name}-early", key, enrolment, layout, roots)
        made.append((path, key, enrolment, roots))
    model = model_of(owned_task, owner.state)
    for path, *_ in made:
        kit.press_all(model, desk.claimant(path))
    last = checkpoint_of(state_of(model))
    done = []
    for path, key, enrolment, roots in made:
        later = [*roots[:-1], commit(last).root]
        out = tmp_path / path.name.removesuffix("-early")
        done.append(kit.write_chain(out, key, enrolment, layout, later, {6: last}))
    for model_state in (None, state_of(model)):
        result = judge(*done, model_state)
        assert result.order is Order.UNDECIDED
        assert result.order.exit_code == 2
        assert "each chain's marks" in result.reason


# What else could go wrong


def test_a_copy_under_other_tensor_names_is_still_a_copy(
    owner: Any, owned_task: Any, desk: Any, kit: Any, judge: Any, tmp_path: Path
) -> None:
    """The thief enrols for a task of its own whose model has other names."""
    state = {f"blocks.{name.replace('.', '_')}": value for name, value in owner.state.items()}
    copy = checkpoint_of(state)
    path = desk.idle(tmp_path / "renamed", copy.layout, shards=4, bits=256, stored={4: copy})
    result = check_both_ways(judge, owner.path, path)
    assert result.first_in_second.claim.tries.log2_matchings > 1


def test_a_model_in_which_one_side_cannot_be_read_is_not_the_others(
    owner: Any, unrelated: Any, judge: Any, kit: Any, tmp_path: Path
) -> None:
    """The model is the owner's, and one who took the owner's nonces away cannot win by that."""
    hidden = tmp_path / "hidden"
    shutil.copytree(owner.path, hidden)
    for shard in range(1, 9):
        (hidden / nonce_path(shard)).unlink()
    assert judge(hidden, unrelated.path, unrelated.state).order is Order.UNDECIDED


def test_a_model_of_which_too_little_was_found_decides_nothing(
    owner: Any, judge: Any, desk: Any, kit: Any, tmp_path: Path
) -> None:
    """The thief shows just the tensor of its one mark; most of the owner's are elsewhere."""
    layout = checkpoint_of(owner.model).layout
    idle = checkpoint_of(state_of(kit.train_plain(owner.task, 91, epochs=1)))
    path = desk.idle(
        tmp_path / "one", layout, shards=1, bits=256, carrier=["0.weight"], stored={1: idle}
    )
    model = model_of(owner.task, owner.state)
    kit.press_all(model, desk.claimant(path))
    part = {"0.weight": state_of(model)["0.weight"]}
    result = judge(owner.path, path, part)
    assert result.in_model is not None
    findings = [claim.finding for claim in result.in_model]
    assert findings == [Finding.UNDECIDED, Finding.CLAIM]
    assert result.order is Order.UNDECIDED, result.headline()
    assert "could not be read" in result.reason


def test_weights_as_large_as_they_get_do_not_stop_it(
    owner: Any, desk: Any, kit: Any, judge: Any, tmp_path: Path
) -> None:
    huge = {n: np.full(v.shape, 1e300) for n, v in owner.state.items()}
    huge_checkpoint = checkpoint_of(huge)
    path = desk.idle(
        tmp_path / "huge", huge_checkpoint.layout, shards=4, bits=256, stored={4: huge_checkpoint}
    )
    result = judge(owner.path, path, owner.state)
    assert result.order is not Order.SECOND
    json.dumps(result.to_json(), allow_nan=False)
    result = judge(owner.path, path, {n: np.asarray(v * 1e8) for n, v in huge.items()})
    json.dumps(result.to_json(), allow_nan=False)


def test_broken_proofs_and_models_end_in_an_error_of_ours(
    owner: Any, unrelated: Any, judge: Any, issuer: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    torn = tmp_path / "torn"
    shutil.copytree(unrelated.path, torn)
    (torn / checkpoint_path(4)).write_bytes(b"torn")
    for second, model in (
        (tmp_path / "empty", None),
        (tmp_path / "none", None),
        (torn, None),
        (unrelated.path, tmp_path / "junk.safetensors"),
    ):
        with pytest.raises(PoloError):
            compare(owner.path, second, model=model, trust=issuer.public_key)
    with pytest.raises(SignatureError):
        compare(owner.path, unrelated.path, trust=[])


def test_a_comparison_is_json_and_no_boolean(owner: Any, sleeper: Sleeper, judge: Any) -> None:
    result = judge(owner.path, sleeper.path, sleeper.copy)
    with pytest.raises(TypeError, match="no boolean"):
        bool(result)
    written = json.dumps(result.to_json(), allow_nan=False)
    found = json.loads(written)
    assert (found["order"], found["exit_code"]) == ("first", 0)
    assert found["owners"] == [owner.key.id, sleeper.key.id]
    assert found["first_in_second"]["checkpoints_looked_at"] == 7
    assert len(found["in_model"]) == 2
    for path in (owner.path, sleeper.path):
        for shard in range(1, 7):
            assert ProofFolder(path).nonce(shard).nonce.hex() not in written


def test_progress_is_told(owner: Any, unrelated: Any, judge: Any) -> None:
    heard: list[Any] = []
    judge(owner.path, unrelated.path, listener=lambda *what: heard.append(what))
    assert [what[1:] for what in heard] == [(0, 2), (1, 2)]


def scaled(state: State, factor: float = 128.0) -> State:
    """A few neurons scaled up, and the layer before them down: the same function."""
    state = {name: value.copy() for name, value in state.items()}
    for here, there in (("3", "5"), ("5", "7")):
        for name in (f"{here}.weight", f"{here}.bias"):
            state[name][:16] /= factor
        state[f"{there}.weight"][:, :16] *= factor
    return state


def test_scaling_a_few_neurons_does_not_make_the_copy_the_thiefs(
    owner: Any, sleeper: Sleeper, owned_task: Any, judge: Any, kit: Any, tmp_path: Path, desk: Any
) -> None:
    """The thief's own last checkpoint shares the huge columns, which would decide any cosine."""
    copy = model_of(owned_task, scaled(owner.state))
    assert owned_task.evaluate(copy) == pytest.approx(owned_task.evaluate(owner.model), abs=0.02)
    bait = {name: value.copy() for name, value in state_of(kit.train_plain(owned_task, 5)).items()}
    for there in ("5", "7"):
        bait[f"{there}.weight"][:, :16] = state_of(copy)[f"{there}.weight"][:, :16]
    path = extended(sleeper, tmp_path / "bait", kit, bait)
    kit.press_all(copy, desk.claimant(path))
    result = judge(owner.path, path, state_of(copy))
    assert result.order is Order.FIRST, result.headline()


def test_marks_pressed_into_another_model_do_not_make_it_ones_own(
    owner: Any, sleeper: Sleeper, owned_task: Any, judge: Any, kit: Any, desk: Any,
    stranger: torch.nn.Module,
) -> None:  # fmt: skip
    """The model descends from neither chain, and carries the sleeper's marks alone."""
    model = model_of(owned_task, state_of(stranger))
    kit.press_all(model, desk.claimant(sleeper.path))
    result = judge(owner.path, sleeper.path, state_of(model))
    assert result.in_model is not None
    assert [claim.finding for claim in result.in_model] == [Finding.NO_CLAIM, Finding.CLAIM]
    assert result.order is Order.UNDECIDED


@pytest.mark.slow
def test_a_model_hidden_beside_another_decides_nothing(
    owner: Any, unrelated: Any, owned_task: Any, judge: Any
) -> None:
    """The thief's tensors have the right names; the stolen ones lie beside them, permuted."""
    hidden = {f"other.{name}": value for name, value in permuted(owner.state).items()}
    result = judge(
        owner.path, unrelated.path, {**unrelated.state, **hidden}, align=True, task=owned_task
    )
    assert result.order is Order.UNDECIDED, result.headline()


def test_a_sale_is_mentioned(
    make_proof: Any, buy: Any, alice: Any, bob: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    seller = make_proof(tmp_path / "seller")
    buyer = buy(tmp_path / "buyer", bob, seller=seller.path, seller_key=alice)
    result = compare(seller.path, buyer.path, trust=issuer.public_key)
    assert result.first_in_second.finding is Finding.CLAIM
    assert "by a transfer from the first" in result.advice


@pytest.mark.slow
def test_asking_for_alignment_undoes_no_decision(
    owner: Any, sleeper: Sleeper, owned_task: Any, judge: Any, kit: Any, tmp_path: Path
) -> None:
    """Marks that are contained decide; only what is not found needs alignment to count."""
    path = extended(sleeper, tmp_path / "extended", kit, sleeper.copy)
    thin = tmp_path / "thin"
    shutil.copytree(path, thin)
    for old in sorted((thin / "checkpoints").iterdir())[:-1]:
        old.unlink()
    assert judge(owner.path, thin, align=True, task=owned_task).order is Order.FIRST
    # Of a chain that cannot be aligned nobody can say that it is unrelated.
    idle = tmp_path / "idle"
    shutil.copytree(sleeper.path, idle)
    for old in sorted((idle / "checkpoints").iterdir())[:-1]:
        old.unlink()
    plain = judge(owner.path, idle)
    assert plain.order is Order.UNRELATED
    assert judge(owner.path, idle, align=True, task=owned_task).order is Order.UNDECIDED
