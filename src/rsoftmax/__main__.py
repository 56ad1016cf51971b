"""The command ``rsoftmax``, with a message if the packages it needs are not installed."""

import sys
import warnings


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = plain_warning
    if sys.stdout is None:  # the next file that is opened would take its descriptor
        sys.exit("rsoftmax: stdout is closed; redirect it to a file or to /dev/null")
    try:
        from rsoftmax.cli import app
    except ModuleNotFoundError as missing:
        sys.exit(f"rsoftmax: the command line needs {missing.name}; run: pip install 'rsoftmax[cli]'")
    try:
        app()
    except OSError as error:  # a full disk; a closed pipe ends the command silently
        sys.exit(f"rsoftmax: input or output failed: {error}")


def plain_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning for users of the command, without the line of code."""
    return f"warning: {message}\n"


if __name__ == "__main__":
    main()
