"""Parse and print amounts of money: US dollars as exact decimals, never binary fractions."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

_CENT = Decimal("0.01")
_MICRO = Decimal("0.000001")
_BEYOND = Decimal(10) ** 15  # too large to read digit by digit, or for a decimal to round to a cent
_MOST_REPORTED = Decimal(10) ** 9  # no call costs that much: the field holds something else
_PLACES = -30  # smallest power of ten; less counts as zero, and would print as many zeros


def usd(amount: Decimal) -> str:
    """Print with two decimals, or as many as needed down to a millionth of a dollar: 5.00, 0.0123."""
    if abs(amount) >= _BEYOND:
        return f"{amount:.2e}"
    if amount == amount.quantize(_CENT):
        return f"{amount.quantize(_CENT):f}"
    if 0 < amount < _MICRO:
        return "under 0.000001"
    text = f"{amount.quantize(_MICRO, rounding=ROUND_HALF_EVEN):f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals:0<2}"


def exact(amount: float) -> Decimal:
    """Convert a configured amount: 0.1 is a tenth, not the nearest binary fraction."""
    return Decimal(repr(amount))


def reported_cost(amount: object) -> Decimal | None:
    """Read the cost that a provider reports; None if the value cannot be an amount."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float, str, Decimal)):
        return None
    try:
        found = Decimal(str(amount))
    except (InvalidOperation, ValueError):  # ValueError: an integer with thousands of digits
        return None
    if not found.is_finite() or not 0 <= found < _MOST_REPORTED:
        return None
    return +found if found.adjusted() >= _PLACES else Decimal(0)  # rounded to the precision of the decimal context
