"""The command line, called in this process."""

import re

from typer.testing import CliRunner

from rsoftmax.cli import app


def rsoftmax(*words: object, code: int = 0) -> str:
    """What ``rsoftmax WORDS`` prints; a usage error without its frame and line breaks."""
    done = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return re.sub(r"[\s│]+", " ", done.output) if code else done.output
