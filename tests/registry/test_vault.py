"""Keys and secrets at rest."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, text

from polo.errors import FormatError, StoreError
from polo.keys import Ed25519Verifier
from polo.registry.context import Registry
from polo.registry.schema import issuer_keys
from polo.registry.vault import KEY_FILE, Vault


def test_what_is_sealed_opens_again_for_the_same_thing_alone():
    vault = Vault(bytes(32))
    sealed = vault.seal(b"a secret", "enrolment 1")
    assert vault.open(sealed, "enrolment 1") == b"a secret"
    assert b"a secret" not in sealed
    assert sealed != vault.seal(b"a secret", "enrolment 1")
    with pytest.raises(StoreError):
        vault.open(sealed, "enrolment 2")
    with pytest.raises(StoreError):
        Vault(bytes([1]) * 32).open(sealed, "enrolment 1")


@pytest.mark.parametrize("place", range(0, 37, 4))
def test_a_changed_byte_is_noticed(place):
    vault = Vault(bytes(32))
    sealed = bytearray(vault.seal(b"a secret", "x"))
    sealed[place] ^= 1
    with pytest.raises(StoreError):
        vault.open(bytes(sealed), "x")


@pytest.mark.parametrize("junk", [b"", b"\x01", b"\x01" + bytes(5), b"\x02" + bytes(40)])
def test_junk_is_refused(junk):
    with pytest.raises(StoreError):
        Vault(bytes(32)).open(junk, "x")


def test_the_data_key_is_its_owners_alone(tmp_path):
    folder = tmp_path / "new" / "data"
    Vault.in_folder(folder)
    path = folder / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [item.name for item in folder.iterdir()] == [KEY_FILE]
    before = path.read_bytes()
    Vault.in_folder(folder)
    assert path.read_bytes() == before
    path.chmod(0o640)
    with pytest.raises(StoreError, match="others can read"):
        Vault.in_folder(folder)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(FormatError):
        Vault.in_folder(folder)


def test_private_keys_are_nowhere_in_the_database(registry):
    with registry.database.read() as connection:
        rows = connection.execute(select(issuer_keys)).all()
        held = [registry.vault.issuer(connection), registry.vault.log_key(connection)]
    stored = b"".join(bytes(row.private) for row in rows)
    for identity in held:
        assert identity._private.private_bytes_raw() not in stored
    assert len(rows) == 2


def test_keys_survive_a_restart(registry, settings, clock):
    with registry.database.read() as connection:
        before = registry.vault.issuer(connection), registry.vault.log_key(connection)
    again = Registry.open(settings, clock=clock)
    with again.database.read() as connection:
        after = again.vault.issuer(connection), again.vault.log_key(connection)
    again.close()
    assert [item.public_key for item in before] == [item.public_key for item in after]


def test_a_lost_data_key_is_not_replaced_silently(registry, settings, clock):
    (settings.data / KEY_FILE).unlink()
    with pytest.raises(StoreError, match="does not open") as lost:
        Registry.open(settings, clock=clock)
    assert KEY_FILE in lost.value.advice


def test_rotation_keeps_the_old_key_for_running_chains(registry, client, clock):
    with registry.database.begin() as connection:
        old = registry.vault.issuer(connection)
    clock.advance(100)
    with registry.database.begin() as connection:
        new = registry.vault.rotate(connection, clock())
    fresh = Vault.in_folder(registry.settings.data)  # Another process, with nothing in memory.
    with registry.database.read() as connection:
        assert fresh.issuer(connection).public_key == new.public_key
        signature = fresh.issuer_of(connection, old.public_key).sign(b"a receipt")
        log = fresh.log_key(connection)
        with pytest.raises(StoreError):
            fresh.issuer_of(connection, log.public_key)
    assert Ed25519Verifier().verify(old.public_key, b"a receipt", signature)
    assert registry_issuer(registry) == new.public_key
    published = {item["key"]: item for item in client.get("/v1/keys").json()["keys"]}
    assert published[old.public_key.hex()]["until"] == clock()
    assert published[new.public_key.hex()]["until"] is None
    assert published[log.public_key.hex()]["use"] == "log"


def registry_issuer(registry):
    with registry.database.read() as connection:
        return registry.vault.issuer(connection).public_key


def test_a_key_that_was_exchanged_in_the_database_is_noticed(registry):
    other = Ed25519PrivateKey.generate()
    with registry.database.begin() as connection:
        key = connection.execute(
            select(issuer_keys.c.key).where(issuer_keys.c.use == "log")
        ).scalar_one()
        sealed = registry.vault.seal(other.private_bytes_raw(), f"log key {bytes(key).hex()}")
        statement = text("update issuer_keys set private = :new where key = :key")
        connection.execute(statement, {"new": sealed, "key": key})
    with (
        registry.database.read() as connection,
        pytest.raises(StoreError, match="not the one beside"),
    ):
        Vault.in_folder(registry.settings.data).log_key(connection)
