"""The command ``rsoftmax``, and what it says when the packages behind it are not installed."""

import sys
import warnings


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = plain_warning
    try:
        from rsoftmax.cli.application import app
    except ModuleNotFoundError as missing:
        sys.exit(f"rsoftmax: the command line needs {missing.name}; run: pip install 'rsoftmax[cli]'")
    app()


def plain_warning(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as users of a command read it, without the place in the code that gave it."""
    return f"warning: {message}\n"


if __name__ == "__main__":
    main()
