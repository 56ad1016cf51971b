"""check_site.py FOLDER: every link within the built site leads somewhere, and every public name is in the reference.

`make docs` runs it.
"""

import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from urllib.parse import unquote, urlsplit

import rsoftmax

FURTHER = ("labels.losses", "labels.models.tables", "labels.models.onnx")  # modules that users import, too


class Page(HTMLParser):
    """What a page links to, and the anchors that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links |= {values[name] for name in ("href", "src") if name in values}


def broken_links(site: Path) -> Iterator[str]:
    paths = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # templates of the theme
    pages = {path: Page(path) for path in paths}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link}: there is no such file"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {link}: the page has no such anchor"


def names(module: str) -> set[str]:
    """The public names of a module; none if it is absent, or needs packages that are."""
    try:
        return set(getattr(import_module(module), "__all__", ()))
    except ImportError:
        return set()


def public_names() -> set[str]:
    """The names that the public modules list; the command line is not part of the API."""
    modules = [name for _, name, _ in iter_modules(rsoftmax.__path__) if not name.startswith("_") and name != "cli"]
    return set().union(*(names(f"rsoftmax.{module}") for module in (*modules, *FURTHER)))


def documented_names(site: Path) -> set[str]:
    """The last part of every name in the inventory that Sphinx writes."""
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ", 1)[0].rsplit(".", 1)[-1] for line in lines}


if __name__ == "__main__":
    site = Path(sys.argv[1])
    missing = sorted(public_names() - documented_names(site))
    faults = [*broken_links(site.resolve()), *(f"{name}: no page of docs/api has it" for name in missing)]
    sys.exit("\n".join(faults) or None)
