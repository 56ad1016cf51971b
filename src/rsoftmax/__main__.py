"""The command ``rsoftmax``, and what it says when the packages behind it are not installed."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from rsoftmax.cli.application import app
    except ModuleNotFoundError as missing:
        sys.exit(f"rsoftmax: the command line needs {missing.name}; run: pip install 'rsoftmax[cli]'")
    app()


if __name__ == "__main__":
    main()
