"""Takes the picture of a report in docs/pictures, of a made-up fleet.

python -m tests.pipeline.pictures [docs/pictures]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from staniel.pipeline.report.page import write
from tests.pipeline.fleets import fleet
from tests.support.browser import chromium

QUEUES = ["mail", "thumbnails", "audit", "invoices", *(f"tenant-{number:02d}" for number in range(46))]
HOSTS = [f"web{number:03d}" for number in range(200)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the picture of a report.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 1250}, timezone_id="Europe/Berlin", locale="en-GB")
        page.goto(write(fleet(HOSTS, QUEUES, seed=3), Path(place)).as_uri())
        page.wait_for_selector("body[data-drawn]", timeout=120_000)
        page.select_option("#kind", "names")
        page.select_option("#top", "5")
        page.select_option("#sort", "depth")
        page.screenshot(path=folder / "report.png")


if __name__ == "__main__":
    main()
