"""The configuration of Sphinx; `make docs` builds the site."""

import warnings
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.deprecation import RemovedInNextVersionWarning

import rsoftmax

ROOT = Path(__file__).parents[1]
warnings.simplefilter("ignore", RemovedInNextVersionWarning)  # raised by the extensions

for package in (rsoftmax.attention, rsoftmax.labels):  # autodoc needs their names, which are loaded on first use
    vars(package).update({name: getattr(package, name) for name in package.__all__})

project = "rsoftmax"
author = "the rsoftmax developers"
version = release = rsoftmax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "examples/*.ipynb",
    "examples/GALLERY_HEADER.rst",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]
nitpicky = False  # types of torch and scikit-learn are not documented here

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
autodoc_default_options = {
    "exclude-members": ", ".join(f"set_{of}_request" for of in ("fit", "partial_fit", "score", "predict", "split")),
}
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "examples",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "default_thumb_file": str(ROOT / "docs" / "mappings.png"),
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1e9,
    "download_all_examples": False,
    "show_signature": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "rsoftmax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"*": []}  # only the reference and the examples have subpages
html_show_sourcelink = False
copyright = author


def mathml(tex: str, as_block: bool) -> str:
    """Convert an equation to MathML, which browsers render without scripts."""
    drawn: str = tex2mathml(tex, as_block=as_block)
    return drawn


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="equation">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# Files outside docs/ that are pages of the site, by the path that other pages link to.
PAGES = {
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../results/report/report.md": "report.md",
    "../examples/03_sparse_encoder_fine_tuned_and_timed.py": "examples/03_sparse_encoder_fine_tuned_and_timed",
    "../examples/07_onnx.py": "examples/07_onnx",
}


def pages_outside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point links to files outside docs/ at their pages."""
    up = "../" * docname.count("/")
    for path, page in PAGES.items():
        source[0] = source[0].replace(f"]({up}{path}", f"]({up}{page}")


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("source-read", pages_outside)


html_math_renderer = "mathml"
