"""check_site.py FOLDER: every link within the built site leads somewhere, and every public name is in the reference.

`make docs` runs it.
"""

import ast
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import rsoftmax

FILES = ("tables.py", "onnx.py")  # the modules of rsoftmax.files that users import


class Page(HTMLParser):
    """What a page links to, and the anchors that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.links |= {given[name] for name in ("href", "src") if name in given}


def broken_links(site: Path) -> Iterator[str]:
    found = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # templates of the theme
    pages = {path: Page(path) for path in found}
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


def listed(path: Path) -> set[str]:
    """The names in ``__all__`` of a file, which is read and not imported; ``*module.__all__`` stands for its names."""
    names: set[str] = set()
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
            assert isinstance(line.value, ast.List | ast.Tuple), f"{path}: __all__ must be a list"
            for item in line.value.elts:
                if isinstance(item, ast.Starred):
                    names |= listed(path.with_name(ast.unparse(item.value).removesuffix(".__all__") + ".py"))
                else:
                    names.add(ast.literal_eval(item))
    return names


def public_names() -> set[str]:
    """The names that the public packages and modules list; the command line is not part of the API."""
    home = Path(rsoftmax.__file__).parent
    files = [*home.glob("*.py"), *home.glob("*/__init__.py"), *(home / "files" / name for name in FILES)]
    return {name for path in files if path.parent.name != "cli" for name in listed(path)}


def documented_names(site: Path) -> set[str]:
    """The last part of every name in the inventory that Sphinx writes."""
    listed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ", 1)[0].rsplit(".", 1)[-1] for line in zlib.decompress(listed).decode().splitlines()}


def main(site: Path) -> None:
    faults = [
        *broken_links(site.resolve()),
        *(f"{name}: no page of docs/api has it" for name in sorted(public_names() - documented_names(site))),
    ]
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
