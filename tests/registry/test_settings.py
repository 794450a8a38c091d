"""Settings: where they come from, what they may be, and that each is documented."""

import inspect
import re
from pathlib import Path

import pytest

from polo.enrolment import make_terms
from polo.errors import FormatError, StoreError
from polo.registry.settings import PREFIX, Settings, names
from polo.registry.tasks import offers

OPERATE = Path(__file__).resolve().parents[2] / "docs" / "operate.md"


def test_defaults_follow_from_the_folder(tmp_path):
    settings = Settings(data=tmp_path)
    assert settings.database == f"sqlite:///{tmp_path}/registry.sqlite"
    assert settings.objects == f"file://{tmp_path}/objects"
    assert settings.public_url == "http://127.0.0.1:8440"
    assert settings.origin == "127.0.0.1:8440"
    assert settings.embedded
    assert not settings.secure


def test_the_default_folder_is_where_the_desktop_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Settings().data == tmp_path / "polo-registry"


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "registry.toml"
    file.write_text('port = 1\nhost = "a"\nrate = 7\ntrusted_proxies = ["10.0.0.1"]\n')
    environment = {PREFIX + "PORT": "2", PREFIX + "HOST": "b", PREFIX + "DATA": str(tmp_path)}
    settings = Settings.load(file, environment, port=3, host=None)
    assert (settings.port, settings.host, settings.rate) == (3, "b", 7)
    assert settings.trusted_proxies == ("10.0.0.1",)


def test_the_file_may_be_named_by_the_environment(tmp_path):
    file = tmp_path / "registry.toml"
    file.write_text("port = 1\n")
    assert Settings.load(environment={PREFIX + "FILE": str(file)}).port == 1


@pytest.mark.parametrize(
    "text",
    [
        "prot = 1",
        "port = true",
        'port = "x"',
        "port = -1",
        "port = 65536",
        "host = 1",
        "rate = 0",
        'jobs = "elsewhere"',
        'public_url = "ftp://x"',
        'origin = "two words"',
        'trusted_proxies = ["everybody"]',
        "trusted_proxies = [1]",
        'log_level = "loud"',
        "port = ",
        "\x00",
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path, text):
    file = tmp_path / "registry.toml"
    file.write_text(text)
    with pytest.raises(FormatError) as refused:
        Settings.load(file, {})
    assert refused.value.place


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        Settings.load(tmp_path / "nothing.toml", {})


def test_the_origin_comes_from_the_public_url():
    settings = Settings(public_url="https://polo.example/registry/")
    assert settings.origin == "polo.example/registry"
    assert settings.secure


@pytest.mark.parametrize("name", names())
def test_every_setting_is_documented_in_its_own_section(name):
    text = OPERATE.read_text()
    assert re.search(rf"^### `{name}`$", text, re.MULTILINE), f"docs/operate.md: {name}"


def test_no_other_setting_is_documented():
    documented = re.findall(r"^### `([a-z_]+)`$", OPERATE.read_text(), re.MULTILINE)
    assert set(documented) <= set(names())


def offered_in_the_documentation():
    """Key, meaning and default, from the table of what an offer can say."""
    section = (
        OPERATE.read_text().partition("\n### What an offer can say\n")[2].partition("\n## ")[0]
    )
    return re.findall(r"^\| `([a-z0-9_]+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)


def test_every_key_of_an_offer_is_documented_once_with_its_default():
    rows = offered_in_the_documentation()
    assert sorted(key for key, _, _ in rows) == sorted(offers.KEYS)
    assert all(meaning.strip() and default.strip() for _, meaning, default in rows)


def test_defaults_of_offers_are_those_of_terms():
    usual = inspect.signature(make_terms).parameters
    for key, _, default in offered_in_the_documentation():
        value = usual[key].default if key in usual else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert float(default.replace("−", "-")) == value, key
        elif isinstance(value, str):
            assert default == f'`"{value}"`', key


def test_workers_on_sqlite_are_refused(tmp_path):
    with pytest.raises(FormatError, match="workers need PostgreSQL"):
        Settings.load(None, {PREFIX + "JOBS": "procrastinate"}, data=tmp_path)
    assert Settings(jobs="procrastinate", database="postgresql://polo@/polo").jobs != "inside"
