"""Numbers as a reader wants them: three digits, and a prefix before the unit."""


def with_prefix(value: float, unit: str) -> str:
    """A quantity with k, M, G, T or P before its unit.

    >>> with_prefix(13.5e9, "B"), with_prefix(12, "FLOP/s")
    ('13.5 GB', '12 FLOP/s')
    """
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * factor:
            return f"{number(value / factor)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> number(1234.5), number(0.025)
    ('1,230', '0.025')
    """
    return f"{float(f'{value:.3g}'):,.10g}"
