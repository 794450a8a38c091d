"""Pages in Chromium: nothing complains, nothing leaves the host, keyboard and eyes get along.

Screenshots are left in build/screenshots, to be looked at.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
SHOTS = Path(__file__).parents[3] / "build" / "screenshots"
FLAGS = "no-sandbox headless disable-gpu disable-background-networking no-first-run"
FLAGS += " disable-component-update disable-sync"
PAGES = {
    "home": "/",
    "chains": "/chains",
    "chain-growing": "/chains/{growing}",
    "chain-empty": "/chains/{empty}",
    "chain-hostile": "/chains/{hostile}",
    "verdict-accepted": "/verifications/{accepted}",
    "verdict-rejected": "/verifications/{rejected}",
    "verification-running": "/verifications/{running}",
    "log": "/log",
    "whose": "/whose",
    "scan": "/whose/{claimed}",
    "scan-nobody": "/whose/{unclaimed}",
    "login": "/login",
    "missing": "/nothing",
    "operator": "/operator",
}
LOOKS = {"phone": (360, "light"), "wide": (1280, "light"), "dark": (1280, "dark")}

CONTRAST = """() => {
  const numbers = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3)
    .map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const wrong = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(".spoken, .skip, title, desc, script, noscript, option")) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(numbers(ink)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push([ratio.toFixed(2), node.data.trim().slice(0, 40)]);
  }
  return wrong;
}"""

AUDIT = """() => {
  const wrong = [];
  const all = (query) => [...document.querySelectorAll(query)];
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title) wrong.push("no title");
  for (const name of ["header", "nav", "main", "footer"])
    if (all(name).length !== 1) wrong.push(`${all(name).length} of ${name}`);
  let last = 0;
  for (const heading of all("h1, h2, h3, h4, h5, h6")) {
    const level = Number(heading.tagName[1]);
    if (level > last + 1) wrong.push(`${heading.tagName} after h${last}: ${heading.textContent}`);
    if (!heading.textContent.trim()) wrong.push(`empty ${heading.tagName}`);
    last = level;
  }
  for (const field of all("input:not([type=hidden], [hidden]), select, textarea"))
    if (!field.labels.length) wrong.push(`no label: ${field.name}`);
  for (const item of all("a[href], button"))
    if (!item.textContent.trim() && !item.getAttribute("aria-label"))
      wrong.push(`no name: ${item.outerHTML.slice(0, 80)}`);
  for (const table of all("table")) {
    if (!table.caption || !table.caption.textContent.trim()) wrong.push("table without caption");
    for (const cell of table.querySelectorAll("th"))
      if (!cell.scope) wrong.push(`th without scope: ${cell.textContent}`);
  }
  for (const drawing of all("svg:not([aria-hidden])"))
    if (drawing.getAttribute("role") !== "img" || !drawing.querySelector("title"))
      wrong.push("svg without words");
  for (const box of all("*")) {
    const may = ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    if (may && box.scrollWidth > box.clientWidth + 1 && box.tabIndex < 0)
      wrong.push(`scrolls without keyboard: ${box.className || box.tagName}`);
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids))
    if (ids.filter((other) => other === id).length > 1) wrong.push(`id twice: ${id}`);
  for (const name of ["aria-labelledby", "aria-describedby"])
    for (const element of all(`[${name}]`))
      for (const id of element.getAttribute(name).split(/\\s+/))
        if (!document.getElementById(id)) wrong.push(`${name} names nothing: ${id}`);
  return wrong;
}"""


class Browser:
    """Chromium with one tab, and everything it complains about."""

    def __init__(self, context: Any, site: str) -> None:
        self.site = site
        self.said: list[str] = []
        self.tab = context.new_page()
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.tab.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.site + "/", "data:,")):
            self.said.append(f"asked for {request.url}")

    def open(self, place: str, *, missing: bool = False) -> Any:
        answer = self.tab.goto(self.site + place)
        if missing:  # Chromium itself notes that a page was not found.
            self.said = [words for words in self.said if "404" not in words]
        return answer

    def look(self, width: int, scheme: str) -> None:
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.emulate_media(color_scheme=scheme)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def sign_in(self, token: str) -> None:
        self.open("/login")
        self.tab.get_by_label("Token").fill(token)
        self.tab.get_by_role("button", name="Sign in").click()
        self.tab.wait_for_url(self.site + "/operator")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS.split()]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shown_site(shown: Any, serving: Any) -> Iterator[str]:
    with serving(shown.registry) as url:
        yield url


@pytest.fixture
def looking(chromium: Any, shown_site: str) -> Iterator[Browser]:
    """A browser at the registry that all tests share."""
    with opened(chromium, shown_site) as found:
        yield found


@pytest.fixture
def browser(chromium: Any, site: str) -> Iterator[Browser]:
    """A browser at a registry of one's own."""
    with opened(chromium, site) as found:
        yield found


@contextlib.contextmanager
def opened(chromium: Any, site: str) -> Iterator[Browser]:
    context = chromium.new_context()
    context.set_default_timeout(20_000)
    found = Browser(context, site)
    yield found
    context.close()
    assert found.said == []


@pytest.mark.slow
def test_every_page_in_every_look(looking: Browser, shown: Any) -> None:
    began = time.time()
    looking.sign_in("polo_" + "o" * 40)
    for name, template in PAGES.items():
        for look, (width, scheme) in LOOKS.items():
            looking.look(width, scheme)
            place = shown.place(template)
            looking.open(place, missing=name == "missing")
            assert looking.tab.evaluate(AUDIT) == [], f"{name}, {look}"
            assert looking.tab.evaluate(CONTRAST) == [], f"{name}, {look}"
            sizes = looking.tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert sizes[0] <= sizes[1], f"{name}, {look}: {sizes}"
            looking.shoot(f"{name}-{look}")
    pictures = [SHOTS / f"{name}-{look}.png" for name in PAGES for look in LOOKS]
    assert all(path.stat().st_mtime >= began - 1 for path in pictures)


def test_pictures_are_kept_where_the_document_says() -> None:
    root = Path(__file__).parents[3]
    assert (root / "pyproject.toml").exists()
    kept = SHOTS.relative_to(root).as_posix()
    assert f"`{kept}`" in (root / "docs" / "pages.md").read_text()
    assert f"{kept.split('/')[0]}/" in (root / ".gitignore").read_text().splitlines()


@pytest.mark.slow
def test_the_keyboard_reaches_everything(looking: Browser, shown: Any) -> None:
    looking.look(1280, "light")
    looking.open(f"/chains/{shown.chains['growing']}")
    looking.tab.keyboard.press("Tab")
    assert focused(looking) == "Skip to the content"
    assert looking.tab.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    looking.tab.keyboard.press("Enter")
    assert looking.tab.evaluate("document.activeElement.id") == "content"
    wanted = set(
        looking.tab.evaluate(
            "[...document.querySelectorAll('main a, main [tabindex=\"0\"], main button')]"
            ".map((e) => e.getAttribute('href') || e.getAttribute('aria-label'))"
        )
    )
    reached = set()
    for _ in range(200):
        looking.tab.keyboard.press("Tab")
        place = looking.tab.evaluate(
            "document.activeElement.getAttribute('href')"
            " || document.activeElement.getAttribute('aria-label')"
        )
        outline = looking.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if looking.tab.evaluate("document.activeElement === document.body"):
            break
        assert outline != "none", place
        reached.add(place)
    assert wanted <= reached


def focused(browser: Browser) -> str:
    return str(browser.tab.evaluate("document.activeElement.textContent")).strip()


@pytest.mark.slow
def test_a_chain_grows_before_ones_eyes(browser: Browser, filled: Any) -> None:
    from sqlalchemy import update

    from polo.registry import schema

    key = filled.chains["growing"]
    browser.open(f"/chains/{key}")
    browser.tab.locator("#shard-3 a").focus()
    with filled.registry.database.begin() as connection:
        own = schema.challenges.c.enrolment == key
        connection.execute(update(schema.challenges).where(own).values(state="passed"))
        waits = (schema.commitments.c.enrolment == key) & schema.commitments.c.receipt.is_(None)
        connection.execute(update(schema.commitments).where(waits).values(receipt=b"{}"))
        mine = schema.enrolments.c.id == key
        connection.execute(update(schema.enrolments).where(mine).values(shards=12))
    browser.tab.wait_for_selector("#shard-12 a", timeout=15_000)
    said = browser.tab.locator("#said").text_content()
    assert said.startswith("Shard 12 is committed")
    assert browser.tab.evaluate("document.activeElement.closest('tr').id") == "shard-3"


@pytest.mark.slow
def test_without_scripts_the_page_reloads_itself(
    chromium: Any, shown_site: str, shown: Any
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"{shown_site}/chains/{shown.chains['growing']}")
    assert tab.locator("#shard-7").count() == 1
    assert "refresh" in tab.content()
    context.close()


@pytest.mark.slow
def test_pointing_at_a_shard_says_more(looking: Browser, shown: Any) -> None:
    looking.look(1280, "light")
    looking.open(f"/chains/{shown.chains['growing']}")
    mark = looking.tab.locator(".charts .mark").nth(4)
    before = mark.evaluate("e => getComputedStyle(e).stroke")
    mark.hover()
    assert mark.evaluate("e => getComputedStyle(e).stroke") != before
    assert "shard 5: η" in mark.locator("title").text_content()


@pytest.mark.slow
def test_a_file_is_chosen_and_scanned(browser: Browser, filled: Any, tmp_path: Path) -> None:
    model = tmp_path / "found.safetensors"
    model.write_bytes(b"\0" * 2_000_000)
    browser.look(360, "light")
    browser.open("/whose")
    browser.tab.get_by_label("Choose a safetensors file").set_input_files(model)
    browser.tab.get_by_role("button", name="Scan").click()
    browser.tab.wait_for_url(browser.site + "/whose/*")
    assert browser.tab.locator("h1").count() == 1
