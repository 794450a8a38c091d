"""Loaders: real formats on small made files, what is missing or broken, and stand-ins."""

import gzip
import hashlib
import io
import lzma
import pickle
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polo.errors import FormatError, LimitError, MissingError, TaskError
from polo_lab import data
from polo_lab.data import (
    agnews,
    cifar,
    digests,
    digits,
    files,
    idx,
    pictures,
    text,
    tinyimagenet,
    words,
)
from polo_lab.data.dataset import Part


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLO_DATA", str(tmp_path))
    return tmp_path


def pixels(count: int, side: int = 32, seed: int = 0) -> np.ndarray:
    """Images with channels last, smooth enough for JPEG."""
    random = np.random.default_rng(seed)
    return np.broadcast_to(random.integers(0, 256, (count, 1, 1, 3), np.uint8),
                           (count, side, side, 3)).copy()  # fmt: skip


def encoded(image: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return out.getvalue()


def strips(path: Path, images: np.ndarray, labels: np.ndarray, per: int = 4) -> None:
    found = [encoded(images[at : at + per].reshape(-1, 32, 3), "WEBP")
             for at in range(0, len(images), per)]  # fmt: skip
    np.savez(
        path, blob=np.frombuffer(b"".join(found), np.uint8),
        length=np.array([len(one) for one in found], np.uint32), hw=np.array([32, 32]),
        per=np.array(per), count=np.array(len(images)), label=labels,
    )  # fmt: skip


def jpegs(path: Path, images: np.ndarray, labels: np.ndarray, cut: int = 100) -> None:
    found = [encoded(image, "JPEG") for image in images]
    heads = sorted({one[:cut] for one in found})
    np.savez(
        path, blob=np.frombuffer(b"".join(one[cut:] for one in found), np.uint8),
        length=np.array([len(one) - cut for one in found], np.uint32),
        header_id=np.array([heads.index(one[:cut]) for one in found], np.uint8),
        headers=np.frombuffer(b"".join(heads), np.uint8),
        header_len=np.array([cut] * len(heads), np.uint32), label=labels,
    )  # fmt: skip


def records(path: Path, count: int, classes: int, coarse: int = 0) -> np.ndarray:
    rows = np.random.default_rng(count).integers(0, 256, (count, coarse + 3073), np.uint8)
    rows[:, : coarse + 1] %= np.uint8(classes)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.tofile(path)
    return rows


# --- CIFAR


def test_cifar100_is_read_in_its_original_format(folder: Path) -> None:
    made = records(folder / cifar.BINARY_100 / "train.bin", 30, 100, coarse=1)
    records(folder / cifar.BINARY_100 / "test.bin", 10, 100, coarse=1)
    found = data.load("cifar100")
    assert found.title == "CIFAR-100, 30 of 50,000 of train, 10 of 10,000 of test"
    assert (found.classes, found.shape) == (100, (3, 32, 32))
    assert found.train.labels.tolist() == made[:, 1].tolist(), "the fine class, not the coarse one"
    assert (found.train.inputs[7].ravel() == made[7, 2:]).all()
    assert found.test.inputs.shape == (10, 3, 32, 32)


def test_files_of_cifar100_that_are_complete_have_its_name_and_longer_ones_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "_WHOLE", {"train": 5, "test": 3})
    train, test = (folder / cifar.BINARY_100 / f"{part}.bin" for part in ("train", "test"))
    records(train, 5, 100, coarse=1)
    records(test, 2, 100, coarse=1)
    assert cifar.cifar100().title == "CIFAR-100, 2 of 3 of test"
    records(test, 3, 100, coarse=1)
    assert cifar.cifar100().title == "CIFAR-100"
    train.with_name("train.bin.xz").write_bytes(lzma.compress(train.read_bytes()[: 4 * 3074]))
    train.unlink()
    assert cifar.cifar100().title == "CIFAR-100, 4 of 5 of train", "packed or not"
    records(train, 6, 100, coarse=1)
    with pytest.raises(FormatError, match="not CIFAR-100: train has 6, not 5"):
        cifar.cifar100()


@pytest.mark.parametrize("size", [0, 3073, 3 * 3074 - 1])
def test_a_file_of_other_records_is_refused(folder: Path, size: int) -> None:
    for name in ("train.bin", "test.bin"):
        records(folder / cifar.BINARY_100 / name, 3, 100, coarse=1)
    (folder / cifar.BINARY_100 / "train.bin").write_bytes(bytes(size))
    with pytest.raises(FormatError, match="3074 bytes"):
        data.load("cifar100").train  # noqa: B018


def test_labels_beyond_the_classes_are_refused(folder: Path) -> None:
    records(folder / "a.bin", 40, 255)
    with pytest.raises(FormatError, match="beyond 10 classes"):
        cifar.records(folder / "a.bin")


def test_both_forms_of_cifar10_are_the_same_and_must_be_cifar10(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = pixels(20), (np.arange(20) % 10).astype(np.uint8)
    strips(folder / "cifar10_train_a.npz", images[:10], labels[:10])
    strips(folder / "cifar10_train_b.npz", images[10:], labels[10:])
    strips(folder / "cifar10_test.npz", images[:5], labels[:5])
    with pytest.raises(FormatError, match="not CIFAR-10's train images"):
        data.load("cifar10").train  # noqa: B018
    wanted = {
        part: (cifar._sha(images[:count]), cifar._sha(labels[:count]))
        for part, count in (("train", 20), ("test", 5))
    }
    monkeypatch.setattr(cifar, "_DIGESTS", wanted)
    packed = data.load("cifar10")
    assert len(cifar.some("train").labels) == 20
    first = (packed.train.inputs[:, :, 0, 0] == images[:, 0, 0]).all()
    assert first
    digest = packed.digest
    rows = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(20, -1)], axis=1)
    where = folder / "again" / cifar.BINARY
    where.mkdir(parents=True)
    for at in range(5):
        rows[4 * at : 4 * at + 4].tofile(where / f"data_batch_{at + 1}.bin")
    (where / "test_batch.bin.xz").write_bytes(lzma.compress(rows[:5].tobytes()))
    monkeypatch.setenv("POLO_DATA", str(folder / "again"))
    assert data.load("cifar10").digest == digest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per", np.array(np.nan)), ("per", np.array("x")), ("count", np.array(np.inf)),
        ("length", np.array(3, np.uint32)), ("label", np.array(1)),
        ("label", np.array([0.5] * 8)), ("hw", np.array("no")),
    ],
)  # fmt: skip
def test_strips_of_anything_else_are_refused(folder: Path, name: str, value: np.ndarray) -> None:
    path = folder / "strips.npz"
    strips(path, pixels(8), np.zeros(8, np.uint8))
    with np.load(path) as found:
        np.savez(path, **{**found, name: value})
    with pytest.raises(FormatError, match=str(path)):
        pictures.strips(path, side=32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("header_id", np.array([-5] * 4)), ("header_id", np.array([0.5] * 4)),
        ("header_id", np.array(0, np.uint8)), ("header_id", np.array(["a"] * 4)),
        ("header_id", np.array([200] * 4, np.uint8)), ("label", np.array(3)),
        ("length", np.array(3, np.uint32)),
    ],
)  # fmt: skip
def test_pictures_of_anything_else_are_refused(folder: Path, name: str, value: np.ndarray) -> None:
    path = folder / "jpegs.npz"
    jpegs(path, pixels(4), np.zeros(4, np.uint8))
    with np.load(path) as found:
        np.savez(path, **{**found, name: value})
    with pytest.raises(FormatError, match=str(path)):
        pictures.jpegs(path, side=32)


def test_a_packed_file_is_checked_whatever_it_is_packed_with(folder: Path) -> None:
    for name in ("ag_news_train_subset77k.csv", "ag_news_test.csv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress(b'"1","a fake","x","1"\n'))
    with pytest.raises(FormatError, match="is not the file known by this name"):
        data.load("agnews").train  # noqa: B018


def test_a_short_run_may_have_some_of_the_binary_files(folder: Path) -> None:
    (folder / cifar.BINARY).mkdir()
    made = records(folder / cifar.BINARY / "data_batch_2.bin", 30, 10)
    assert (cifar.some("train").labels == made[:, 0]).all()
    with pytest.raises(MissingError) as caught:
        cifar.some("test")
    assert "test_batch.bin" in caught.value.advice


def test_what_is_missing_of_cifar10_is_named(folder: Path) -> None:
    with pytest.raises(MissingError) as caught:
        data.load("cifar10")
    for name in (cifar.BINARY, "cifar10_train_a.npz", "cifar10_train_b.npz", "cifar10_test.npz"):
        assert name in caught.value.advice
    assert "not there" not in caught.value.advice, "nothing is there"
    (folder / "cifar10_train_a.npz").touch()
    (folder / "cifar10_test.npz").touch()
    with pytest.raises(MissingError) as caught:
        data.load("cifar10")
    assert "Of 3 files 1 are not there: cifar10_train_b.npz." in caught.value.advice
    assert "data_batch" not in caught.value.advice


def test_packed_digits_are_read_where_they_are_and_must_be_the_digits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.datasets import load_digits

    brought, path = data.load("digits").digest, folder / digits.PACKED
    found = load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.uint8)
    np.savez(path, images=images, label=labels)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FormatError, match="is not the file known by this name"):
        digits.load().train  # noqa: B018
    monkeypatch.setattr(digits, "_DIGEST", hashlib.sha256(path.read_bytes()).hexdigest())
    assert digits.load().digest == brought, "the same images as scikit-learn's"
    path.unlink()
    with pytest.raises(MissingError, match="need scikit-learn") as caught:
        digits.load().train  # noqa: B018
    assert digits.PACKED in caught.value.advice


def test_pickled_versions_are_not_read_and_it_is_said(folder: Path) -> None:
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({}))
    with pytest.raises(MissingError) as caught:
        data.load("cifar10")
    assert "cifar-10-batches-py is pickled and is not read" in caught.value.advice


# --- packed files


def test_arrays_of_objects_are_never_unpickled(folder: Path) -> None:
    np.savez(folder / "a.npz", blob=np.array([print], dtype=object))
    with pytest.raises(FormatError, match="no plain array"):
        files.arrays(folder / "a.npz", "blob")


def test_an_array_is_as_long_as_its_head_says(folder: Path) -> None:
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("blob.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with pytest.raises(FormatError, match="no plain array"):
        files.arrays(folder / "a.npz", "blob")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01"])
def test_what_is_no_archive_is_refused(folder: Path, content: bytes) -> None:
    (folder / "a.npz").write_bytes(content)
    with pytest.raises(FormatError, match="cannot be read"):
        files.arrays(folder / "a.npz", "blob")


def test_a_file_that_unpacks_to_very_much_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    (folder / "a.xz").write_bytes(lzma.compress(bytes(5000)))
    (folder / "a.gz").write_bytes(gzip.compress(bytes(5000)))
    np.savez_compressed(folder / "a.npz", blob=np.zeros(5000, np.uint8))
    for name in ("a.xz", "a.gz"):
        with pytest.raises(LimitError):
            files.read(folder / name)
    with pytest.raises(LimitError):
        files.arrays(folder / "a.npz", "blob")


def test_packed_pictures_of_another_size_are_refused(folder: Path) -> None:
    labels = np.zeros(4, np.uint8)
    jpegs(folder / "large.npz", pixels(4, side=96), labels)
    with pytest.raises(FormatError, match="image 0: is a picture of"):
        pictures.jpegs(folder / "large.npz", 64)
    strips(folder / "strips.npz", pixels(4), labels)
    with zipfile.ZipFile(folder / "strips.npz") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    for name, value in (("per", 3), ("count", 5), ("hw", [64, 64])):
        out = io.BytesIO()
        np.save(out, np.array(value))
        with zipfile.ZipFile(folder / "other.npz", "w") as archive:
            for entry, content in (held | {f"{name}.npy": out.getvalue()}).items():
                archive.writestr(entry, content)
        with pytest.raises(FormatError):
            pictures.strips(folder / "other.npz", 32)


def test_what_is_no_picture_is_refused(folder: Path) -> None:
    jpegs(folder / "a.npz", pixels(2, side=64), np.zeros(2, np.uint8))
    arrays = dict(np.load(folder / "a.npz"))
    broken = arrays | {"headers": np.zeros_like(arrays["headers"])}
    np.savez(folder / "broken.npz", **broken)
    with pytest.raises(FormatError, match="no JPEG picture"):
        pictures.jpegs(folder / "broken.npz", 64)
    np.savez(folder / "short.npz", **(arrays | {"length": arrays["length"] + 1}))
    with pytest.raises(FormatError, match="do not add up"):
        pictures.jpegs(folder / "short.npz", 64)
    np.savez(folder / "heads.npz", **(arrays | {"header_id": np.array([0, 9], np.uint8)}))
    with pytest.raises(FormatError, match="names a header that it has not"):
        pictures.jpegs(folder / "heads.npz", 64)


# --- TinyImageNet


def packed_tinyimagenet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small parts of five, and the test part."""
    monkeypatch.setattr(tinyimagenet, "_DIGESTS", {})
    monkeypatch.setattr(tinyimagenet, "_OF_A_PART", 4)
    labels = np.array([0, 99, 100, 199], np.uint8)
    for seed, name in enumerate(("val", "train_p0", "train_p2")):
        jpegs(folder / f"tinyimagenet_{name}.npz", pixels(4, 64, seed), labels)


def test_tinyimagenet_says_how_much_of_it_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_tinyimagenet(folder, monkeypatch)
    found = data.load("tinyimagenet")
    assert (found.title, found.classes) == ("TinyImageNet, 40 % of train", 200)
    assert found.train.inputs.shape == (8, 3, 64, 64)
    assert abs(found.test.inputs[:, :, 5, 5].astype(int) - pixels(4)[:, 0, 0]).max() < 5
    small = data.load("tinyimagenet100")
    assert (small.title, small.classes) == ("TinyImageNet-100/32, 40 % of train", 100)
    assert small.train.labels.tolist() == [0, 99, 0, 99]
    assert small.shape == (3, 32, 32)


def test_a_part_of_tinyimagenet_counts_once_and_is_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_tinyimagenet(folder, monkeypatch)
    one, other = (folder / f"tinyimagenet_train_p{at}.npz" for at in (2, 4))
    other.write_bytes(one.read_bytes())
    for name in ("tinyimagenet", "tinyimagenet100"):
        with pytest.raises(FormatError, match=r"p4\.npz: is the same file as .*_p2\.npz"):
            data.load(name)
    jpegs(other, pixels(3, 64, seed=9), np.array([0, 1, 199], np.uint8))
    for name in ("tinyimagenet", "tinyimagenet100"):
        with pytest.raises(FormatError, match="has 3 images, not 4"):
            data.load(name).train  # noqa: B018


def test_no_image_is_decoded_that_is_not_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_tinyimagenet(folder, monkeypatch)
    decode, seen = pictures._decoded, list[str]()

    def counted(data: bytes, kind: str, size: tuple[int, int], place: str) -> np.ndarray:
        seen.append(place)
        return decode(data, kind, size, place)

    monkeypatch.setattr(pictures, "_decoded", counted)
    alone = tinyimagenet.reduced().train
    assert len(seen) == 4, "two of four images in each of two files are of the first classes"
    assert len(data.load("tinyimagenet").train.labels) == 8
    seen.clear()
    after = data.load("tinyimagenet100").train
    assert not seen, "the large one has them"
    assert digests.digest_of(*after) == digests.digest_of(*alone)


def test_every_four_pixels_become_their_mean() -> None:
    image = np.zeros((1, 3, 4, 4), np.uint8)
    image[0, :, :2, :2] = [[255, 255], [255, 254]]
    image[0, :, 2, 2] = 2
    found = tinyimagenet.halved(Part(image, np.zeros(1, np.int64)), 100).inputs
    assert found[0, 0].tolist() == [[255, 0], [0, 1]]


def original_tinyimagenet(folder: Path) -> Path:
    """Two classes with an image each, and one for testing."""
    where = folder / tinyimagenet.ORIGINAL
    for label in ("n02", "n01"):
        (where / "train" / label / "images").mkdir(parents=True)
        one = encoded(pixels(1, 64, int(label[1:]))[0], "JPEG")
        (where / "train" / label / "images" / f"{label}_0.JPEG").write_bytes(one)
    (where / "wnids.txt").write_text("n02\nn01\n")
    (where / "val" / "images").mkdir(parents=True)
    (where / "val" / "images" / "val_0.JPEG").write_bytes(one)
    (where / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t57\n")
    return where


def test_tinyimagenets_own_folder_is_read(folder: Path) -> None:
    where = original_tinyimagenet(folder)
    found = data.load("tinyimagenet")
    assert found.title == "TinyImageNet, 2 of 100,000 of train, 1 of 10,000 of test"
    assert found.train.labels.tolist() == [0, 1]
    assert found.test.labels.tolist() == [1]
    (where / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t62\t57\n")
    with pytest.raises(FormatError, match="no test images"):
        found.read("test")


def test_tinyimagenets_own_folder_is_called_what_is_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = original_tinyimagenet(folder)
    small = tinyimagenet.reduced()
    assert small.title == "TinyImageNet-100/32, 2 of 50,000 of train, 1 of 5,000 of test"
    with (where / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_1.JPEG\tn01\t0\t0\t62\t57\n")
    assert small.test.labels.tolist() == [1], "an image that is listed and is not there"
    monkeypatch.setattr(tinyimagenet, "_CLASSES", 2)
    monkeypatch.setattr(tinyimagenet, "_OF_A_CLASS", {"train": 1, "test": 1})
    assert tinyimagenet._form("TinyImageNet", 2)[0] == "TinyImageNet, 1 of 2 of test"
    (where / "val" / "images" / "val_1.JPEG").touch()
    assert tinyimagenet._form("TinyImageNet", 2)[0] == "TinyImageNet"
    assert tinyimagenet._form("TinyImageNet", 1)[0] == "TinyImageNet", "of its first class"
    assert [label for _, label in tinyimagenet._named("train", 1)] == [0]


def test_another_file_of_the_same_name_is_refused(folder: Path) -> None:
    for name in ("train_p0", "val"):
        jpegs(folder / f"tinyimagenet_{name}.npz", pixels(4, side=64), np.zeros(4, np.uint8))
    with pytest.raises(FormatError, match="not the file known by this name"):
        data.load("tinyimagenet").train  # noqa: B018


# --- idx


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_plain_or_packed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, packing: str
) -> None:
    (folder / name).mkdir()
    for file, shape in (("images-idx3", (5, 28, 28)), ("labels-idx1", (5,))):
        head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
        content = head + (np.arange(np.prod(shape)) % 10).astype(np.uint8).tobytes()
        content = gzip.compress(content) if packing else content
        for part in ("train", "t10k"):
            (folder / name / f"{part}-{file}-ubyte{packing}").write_bytes(content)
    with pytest.raises(FormatError, match="not the file known by this name"):
        data.load(name).train  # noqa: B018
    monkeypatch.setattr(idx, "check_digest", lambda *_: None, raising=False)
    monkeypatch.setattr(files, "check_digest", lambda *_: None)
    found = data.load(name)
    assert found.train.inputs.shape == (5, 1, 28, 28)
    assert found.test.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "content",
    [b"", bytes(4), bytes([0, 0, 8, 0]), bytes([0, 0, 9, 1, 0, 0, 0, 1, 5]),
     bytes([0, 0, 8, 1, 0, 0, 0, 2, 5]), bytes([0, 0, 8, 4]) + b"\xff" * 16 + b"x"],
)  # fmt: skip
def test_what_is_no_idx_file_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        idx.parsed(content, "a file")


# --- texts


def test_ag_news_is_read_in_its_original_format(folder: Path) -> None:
    (folder / "ag_news_csv").mkdir()
    rows = '"3","Fears rise","Oil, again; ""dear"""\n"4","Chips","A chip\\fast"\n'
    (folder / "ag_news_csv" / "train.csv").write_text(rows)
    (folder / "ag_news_csv" / "test.csv").write_text('"1","Oil","Chips unseen"\n')
    found = data.load("agnews")
    assert found.title == "AG News, 2 of 120,000 of train, 1 of 7,600 of test"
    assert (found.classes, found.shape) == (4, (agnews.LENGTH,))
    assert found.train.labels.tolist() == [2, 3]
    vocabulary = words.Vocabulary([words.split('fears rise oil, again; "dear" '
                                               'chips a chip\\fast')], 100)  # fmt: skip
    assert found.test.inputs[0, 0] == words.BEGIN
    assert found.test.inputs[0, 1] == vocabulary.codes(["oil"])[0]
    assert found.test.inputs[0, 3] == words.UNKNOWN
    assert not found.test.inputs[0, 4:].any()


def test_all_rows_of_ag_news_have_its_name_and_one_vocabulary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agnews, "_WHOLE", {"train": 2, "test": 1})
    made: list[int] = []

    class Counted(words.Vocabulary):
        def __init__(self, texts: list[list[str]], size: int) -> None:
            made.append(size)
            super().__init__(texts, size)

    monkeypatch.setattr(agnews, "Vocabulary", Counted)
    (folder / "ag_news_csv").mkdir()
    # A row may go over two lines.
    (folder / "ag_news_csv" / "train.csv").write_text('"3","Oil","a\nb"\n"4","Chips","c"\n')
    (folder / "ag_news_csv" / "test.csv").write_text('"1","Oil","Chips"\n')
    found = data.load("agnews")
    assert found.title == "AG News"
    assert (len(found.train.labels), len(found.test.labels)) == (2, 1)
    assert made == [agnews.VOCABULARY]


@pytest.mark.parametrize("row", ['"5","a","b"', '"x","a","b"', '"1"', ""])
def test_other_rows_are_refused(folder: Path, row: str) -> None:
    (folder / "ag_news_csv").mkdir()
    for name in ("train.csv", "test.csv"):
        (folder / "ag_news_csv" / name).write_text(row)
    with pytest.raises(FormatError):
        data.load("agnews").train  # noqa: B018


def test_wikitext_is_guessed_word_by_word(folder: Path) -> None:
    (folder / "wikitext-2").mkdir()
    line = " ".join(f"w{at % 50}" for at in range(100))
    (folder / "wikitext-2" / "wiki.train.tokens").write_text(f"{line}\n{line}\n")
    (folder / "wikitext-2" / "wiki.test.tokens").write_text(f"{line} new\n")
    found = data.load("wikitext2")
    assert found.title == (
        "WikiText-2 (v1), 202 of 2,088,628 tokens of train, 102 of 245,569 tokens of test"
    )
    assert found.shape == (text.LENGTH,)
    inputs, labels = found.train
    assert len(inputs) == 201 // text.LENGTH
    assert (inputs.ravel()[1:] == labels.ravel()[:-1]).all()
    assert found.test.inputs.min() >= 3
    assert found.classes == text.VOCABULARY


def test_all_of_wikitext_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_WHOLE", {"train": 5, "test": 3})
    (folder / "wikitext-2").mkdir()
    (folder / "wikitext-2" / "wiki.train.tokens").write_text("a b\n\n")
    (folder / "wikitext-2" / "wiki.test.tokens.gz").write_bytes(gzip.compress(b"a b\n"))
    assert text.wikitext2().title == "WikiText-2 (v1), 4 of 5 tokens of train"
    (folder / "wikitext-2" / "wiki.train.tokens").write_text("a b\n\n\n")
    assert text.wikitext2().title == "WikiText-2 (v1)", "ends of lines are tokens"
    (folder / "wikitext-2" / "wiki.train.tokens").write_text("a b\n\n\n\n")
    with pytest.raises(FormatError, match="train has 6, not 5 tokens"):
        text.wikitext2()


def test_words_of_one_frequency_are_in_order_of_letters() -> None:
    one, other = (words.Vocabulary([text.split()], 5) for text in ("b a a c", "a c b a"))
    assert one.codes(["a", "b", "c"]) == other.codes(["a", "b", "c"]) == [3, 4, words.UNKNOWN]


# --- all of them


@pytest.mark.parametrize("name", [name for name in data.names() if name != "digits"])
def test_missing_data_are_named_with_where_to_put_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLO_DATA", raising=False)
    with pytest.raises(MissingError, match="is not here") as caught:
        data.load(name)
    assert "POLO_DATA" in caught.value.advice
    assert "docs/laboratory.md" in caught.value.advice


@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        ("agnews", "ag_news_csv/train.csv", "ag_news_csv/test.csv"),
        ("agnews", "ag_news_train_subset77k.csv.xz", "ag_news_test.csv"),
        ("cifar100", "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
        ("mnist", "mnist/train-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte"),
        ("tinyimagenet", "tinyimagenet_train_p1.npz", "tinyimagenet_val.npz"),
        ("tinyimagenet", "tinyimagenet_val.npz", "tinyimagenet_train_p0.npz"),
        ("tinyimagenet100", "tiny-imagenet-200/wnids.txt",
         "tiny-imagenet-200/val/val_annotations.txt"),
    ],
)  # fmt: skip
def test_where_some_files_are_there_the_absent_ones_are_named(
    folder: Path, name: str, there: str, absent: str
) -> None:
    (folder / there).parent.mkdir(exist_ok=True)
    (folder / there).touch()
    with pytest.raises(MissingError) as caught:
        data.load(name)
    _, _, named = caught.value.advice.partition("are not there: ")
    assert absent in named
    assert Path(there).name.partition(".")[0] not in named


def test_a_part_of_wikitext_that_is_there_is_not_asked_for(folder: Path) -> None:
    (folder / "wikitext2_v1_train_articles_shuffled.txt.xz").touch()
    with pytest.raises(MissingError) as caught:
        data.load("wikitext2")
    assert "holds wikitext-2/wiki.test.tokens or wikitext2_v1_test.txt;" in caught.value.advice
    assert "train" not in caught.value.advice


@pytest.mark.parametrize("name", data.names())
def test_a_stand_in_is_real_has_the_same_form_and_says_what_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLO_DATA", raising=False)
    found, known = data.load(name, fallback=True), data.source(name)
    assert found.shape == known.shape
    assert found.images == known.images
    for part in (found.train, found.test):
        assert len(part.labels) >= 70
        assert part.labels.shape[1:] == known.label_shape
        assert 0 <= part.labels.min() <= part.labels.max() < known.classes
    if name != "digits":
        assert "in the place of" in found.title
        assert found.name != name
    seen = {row.tobytes() for row in found.train.inputs}
    assert not any(row.tobytes() in seen for row in found.test.inputs)


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(TaskError, match="there are agnews, cifar10"):
        data.load("imagenet", fallback=True)


def test_a_data_set_is_read_once_and_parts_of_it_say_so() -> None:
    found = data.load("digits")
    assert data.load("digits") is found
    few = found.small(10, 5)
    assert (len(few.train.labels), len(few.test.labels)) == (10, 5)
    assert few.title == "digits, the first 10 / 5 samples"
    assert few.digest != found.digest


def test_a_digest_tells_shapes_and_types_apart() -> None:
    zeros = np.zeros(8, np.uint8)
    ways = [(zeros,), (zeros.reshape(2, 4),), (zeros[:4], zeros[4:]), (zeros.view(np.int64),)]
    assert len({digests.digest_of(*way) for way in ways}) == 4
