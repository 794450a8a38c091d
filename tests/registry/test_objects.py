"""The object store: written once, checked by digest, streamed."""

import hashlib
import tracemalloc

import pytest

from polo.errors import LimitError, StoreError
from polo.registry.objects import Objects, key_of


def key(data: bytes) -> str:
    return key_of(hashlib.sha256(data).digest())


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return Objects(tmp_path / "objects" if request.param == "folder" else "memory:///")


def test_what_is_put_comes_back(store, tmp_path):
    data = b"an opening"
    assert not store.exists(key(data))
    store.put(key(data), data)
    store.put(key(data), data)
    assert store.get(key(data)) == data
    store.fetch(key(data), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert list(store.keys()) == [key(data)]
    store.delete(key(data))
    store.delete(key(data))
    assert not store.exists(key(data))
    with pytest.raises(StoreError, match="no such object"):
        store.get(key(data))


def test_other_bytes_than_the_key_names_are_refused(store):
    with pytest.raises(StoreError, match="not those that the key names"):
        store.put(key(b"one"), b"other")
    assert not store.exists(key(b"one"))


@pytest.mark.parametrize("odd", ["", "../../etc/passwd", "sha256/ab/" + "cd" * 32, "x" * 5000])
def test_odd_keys_are_refused(store, odd):
    for call in (store.get, store.delete, store.exists, lambda k: store.put(k, b"")):
        with pytest.raises(StoreError, match="no key"):
            call(odd)


def test_large_files_are_streamed(tmp_path):
    store = Objects(tmp_path / "objects")
    large = tmp_path / "large"
    block = bytes(range(256)) * 4096
    with large.open("wb") as file:
        for _ in range(24):
            file.write(block)
    with large.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    tracemalloc.start()
    store.put(key_of(digest), large)
    store.fetch(key_of(digest), tmp_path / "back")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    with pytest.raises(LimitError):
        store.get(key_of(digest), most=2**20)


def test_damage_on_disk_is_found_and_leaves_no_file(tmp_path):
    store = Objects(tmp_path / "objects")
    store.put(key(b"weights"), b"weights")
    (tmp_path / "objects" / key(b"weights")).write_bytes(b"weighty")
    with pytest.raises(StoreError, match="not those that were put there"):
        store.get(key(b"weights"))
    with pytest.raises(StoreError, match="not those that were put there"):
        store.fetch(key(b"weights"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_store_is_refused():
    with pytest.raises(StoreError, match="no object store"):
        Objects("gopher://somewhere")
