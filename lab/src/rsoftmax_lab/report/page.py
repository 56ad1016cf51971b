"""Markdown as HTML: the report as one file, with its pictures in it. The only place where HTML is made."""

import base64
import re
from pathlib import Path

from markdown_it import MarkdownIt


def page(markdown: str, folder: Path) -> str:
    """The page, with the pictures of the folder in it."""
    body = MarkdownIt("commonmark").enable("table").render(markdown)

    def embedded(match: re.Match[str]) -> str:
        picture = base64.b64encode((folder / match[1]).read_bytes()).decode()
        return f'src="data:image/png;base64,{picture}"'

    return PAGE.replace("BODY", re.sub(r'src="([^":]+\.png)"', embedded, body))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
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
