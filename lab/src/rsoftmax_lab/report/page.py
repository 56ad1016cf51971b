"""Markdown to HTML: the report as a single file with embedded figures. The only place that generates HTML."""

import base64
from pathlib import Path

from markdown_it import MarkdownIt


def page(markdown: str, folder: Path) -> str:
    """The page, with the figures of the folder embedded.

    HTML in the Markdown is shown as text. The content security policy allows no scripts and no requests.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for image in [part for token in tokens for part in token.children or () if part.type == "image"]:
        content = base64.b64encode((folder / str(image.attrs["src"])).read_bytes()).decode()
        image.attrs["src"] = f"data:image/png;base64,{content}"
    return PAGE.replace("BODY", parser.renderer.render(tokens, parser.options, {}))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rsoftmax: results</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; font-variant-numeric: tabular-nums; }
td:first-child { white-space: normal; min-width: 14rem; }
tr:hover td { background: #f6f6f6; }
img { max-width: 100%; }
code { background: #f3f3f3; padding: 0 .2rem; }
</style>
</head>
<body>
BODY
</body>
</html>
"""
