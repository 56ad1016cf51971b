"""The pages of docs/ hold every public name, and the check of the built site finds what is broken."""

import re
from pathlib import Path

from check_site import broken_links, names, public_names

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^\.\. (?:py:data|autofunction):: (\S+)$", re.MULTILINE)
MODULE = re.compile(r"^\.\. automodule:: (\S+)\n   :members:", re.MULTILINE)


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    entries = [name.rsplit(".", 1)[-1] for name in ENTRY.findall(text)]
    members = [name for module in MODULE.findall(text) for name in names(module)]
    assert public_names() - {*entries, *members} == set()


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="here">A page</h1> <a href="#here">fine</a> <a href="other.html#there">fine</a>'
        '<a href="https://example.org">elsewhere</a> <a href="#gone">x</a> <a href="other.html#gone">x</a>'
        '<img src="gone.png">'
    )
    (tmp_path / "other.html").write_text('<a name="there" href="index.html">fine</a>')
    assert list(broken_links(tmp_path)) == [
        "index.html: #gone: the page has no such anchor",
        "index.html: gone.png: there is no such file",
        "index.html: other.html#gone: the page has no such anchor",
    ]
