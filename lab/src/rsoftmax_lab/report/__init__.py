"""Tables and figures of the results, the paper's numbers beside ours: a report in Markdown and in HTML."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rsoftmax_lab.experiments.glue import section as glue
from rsoftmax_lab.experiments.images import section as images
from rsoftmax_lab.experiments.synthetic import section as synthetic
from rsoftmax_lab.experiments.tabular import section as tabular
from rsoftmax_lab.report.page import page
from rsoftmax_lab.report.section import Section

# In the report's order. Each reads its rows in a folder of results and draws its pictures into the report's folder;
# none if there are no rows.
SECTIONS: dict[str, Callable[[Path, Path, Callable[[str], None]], Section | None]] = {
    "synthetic": synthetic.section,
    "tabular": tabular.section,
    "images": images.section,
    "glue": glue.section,
}
HEAD = """# Results

Written by `rsoftmax report`. Scores in per cent, mean ± standard deviation over seeds (differences: of the differences
seed by seed).

In multi-label contests, *validation* is what the paper reports: the best epoch on the rows that it is chosen on. *Test*
is the same epoch on rows that nothing was chosen on. "Threshold tuned" is chosen on validation too; "true count" is
told how many labels each row has. Nothing to find and nothing found counts as right (`zero_division=1`).
"""


class Written(NamedTuple):
    """The sections that had results, by name, and all files."""

    sections: dict[str, Section]
    files: list[Path]


def write(results: Path, out: Path, notice: Callable[[str], None]) -> Written:
    """Write report.md, report.html and the figures; raises FileNotFoundError if there are no results."""
    none = FileNotFoundError(f"no results in {results}; `rsoftmax reproduce synthetic --out {results}` makes some")
    if not results.is_dir():
        raise none
    out.mkdir(parents=True, exist_ok=True)
    found = {name: section(results, out, notice) for name, section in SECTIONS.items()}
    sections = {name: section for name, section in found.items() if section is not None}
    if not sections:
        raise none
    text = "\n".join([HEAD, *(section.text for section in sections.values())])
    markdown, html = out / "report.md", out / "report.html"
    markdown.write_text(text, encoding="utf-8")
    html.write_text(page(text, out), encoding="utf-8")
    pictures = [picture for section in sections.values() for picture in section.pictures]
    return Written(sections, [*pictures, markdown, html])
