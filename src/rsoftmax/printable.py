"""Names that come from files, and probabilities, as they can be shown: on a terminal, in a report and in a figure."""

__all__ = ["counted", "printable", "readable", "share"]


def printable(text: str) -> str:
    r"""The text, with an escape in place of each character that has no look of its own.

    Those are line ends, tabs, escape sequences of terminals, marks that turn the direction of writing, invisible spaces
    and bytes of a file's name that are no UTF-8.

    Example:
        >>> print(printable("naïve\n\x1b[31mred \u202egnp.exe"))
        naïve\n\x1b[31mred \u202egnp.exe
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def counted(number: int, noun: str) -> str:
    """So many of something.

    Example:
        >>> counted(1, "label"), counted(2, "label")
        ('1 label', '2 labels')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def share(value: float | None) -> str:
    """A share in three digits; a dash for a share of nothing, which is NaN, or None in a file.

    Example:
        >>> share(0.5), share(float("nan"))
        ('0.500', '-')
    """
    return "-" if value is None or value != value else f"{value:.3f}"


def readable(p: float) -> str:
    """A probability in a few digits; only zero looks like zero.

    Example:
        >>> readable(0.25), readable(2e-5), readable(0.0)
        ('0.250', '2e-05', '0.000')
    """
    return f"{p:.3f}" if p >= 0.001 or p == 0 else f"{p:.0e}"
