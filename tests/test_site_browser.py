"""The built site in a real browser: every page, on a desk and on a phone, light and dark."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browsers import page_of

SITE = Path(__file__).parents[1] / "build" / "docs"
if not (SITE / "index.html").is_file():
    pytest.skip("there is no built site; `make docs` builds it", allow_module_level=True)
PAGES = sorted(
    str(path) for page in SITE.rglob("*.html") if not (path := page.relative_to(SITE)).parts[0].startswith("_")
)

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", [1300, 390])
def test_no_page_has_errors_or_is_wider_than_the_screen(address: str, width: int) -> None:
    with page_of(address, width) as page:
        wide = []
        for name in PAGES:
            page.goto(f"{address}/{name}")
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append(name)
        assert wide == []


def test_the_site_is_dark_where_the_system_is(address: str) -> None:
    with page_of(address) as page:
        page.emulate_media(color_scheme="light")
        light = page.evaluate(BACKGROUND)
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert page.evaluate(BACKGROUND) != light


def test_a_search_finds_a_function(address: str) -> None:
    with page_of(f"{address}/search.html?q=sparse_attention") as page:
        page.get_by_role("link", name="sparse_attention").first.wait_for()
