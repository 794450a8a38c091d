"""Takes `report.png`, the picture of a report: `python docs/images/screenshot.py DIR`.

DIR holds `report.html`, as `polo verify` writes it. Needs playwright and a chromium browser.
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, Page, sync_playwright

BROWSER = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDTH, HEIGHT = 1200, 1600


def shoot(page_file: Path, picture: Path) -> None:
    """Open a page in a browser that keeps nothing, and write the top of it as a picture."""
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=BROWSER,
            args=list(FLAGS),
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
        )
        page = browser.new_page()
        page.goto(page_file.resolve().as_uri())
        page.screenshot(path=picture, full_page=True, clip=_upper_part(page))
        browser.close()


def _upper_part(page: Page) -> FloatRect:
    """Everything down to the drawn chain, so that no section is cut through."""
    section = page.locator("section", has=page.locator(".chain")).bounding_box()
    bottom = section["y"] + section["height"] + 10 if section else HEIGHT
    return {"x": 0, "y": 0, "width": WIDTH, "height": bottom}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where report.html is")
    folder = parser.parse_args().folder
    shoot(folder / "report.html", Path(__file__).with_name("report.png"))


if __name__ == "__main__":
    main()
