"""Pages in a real browser. Importing this skips the tests of a module where there is no browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright; `make browser` installs it")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium; `make browser` installs it", allow_module_level=True)
PATIENCE = 300_000  # milliseconds: a busy machine is slow


@contextmanager
def page_of(address: str, width: int = 1300, height: int = 1000) -> Iterator[Any]:
    """A page that shows the address; in the end its console must have no error, and no other host was asked."""
    host = "/".join(address.split("/")[:3])
    errors: list[str] = []
    requests: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        yield page
        browser.close()
    assert not errors, errors
    elsewhere = [url for url in requests if not url.startswith((host, "data:", "blob:"))]
    assert not elsewhere, elsewhere
