"""Take the pictures of the documentation again: `python -m tools.pictures`, with the `dev` extra and a Chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.reporters.html.browser import chromium, opened
from tests.reporters.html.stories import page, story

#: The folder of the pictures; for each one its report, its colours and its part of the page.
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
PICTURES = {"html-report.png": (4, "light", "body", 960), "html-links.png": (512, "dark", "#x-links-bandwidth", 960)}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, (nodes, scheme, part, height) in PICTURES.items():
            file = Path(folder) / "report.html"
            file.write_bytes(page(story(nodes)))
            with opened(browser, file, scheme=scheme, width=1200, height=height) as found:
                found.page.locator(part).scroll_into_view_if_needed()
                box = found.page.locator(part).bounding_box() or {"x": 0, "y": 0, "width": 1200}
                clip = {
                    "x": box["x"],
                    "y": box["y"] + found.page.evaluate("scrollY"),
                    "width": box["width"],
                    "height": height,
                }
                found.page.screenshot(path=FOLDER / name, clip=clip, full_page=True)


if __name__ == "__main__":
    main()
