"""Amounts of money as people read them and as settings spell them: US dollars, exact, never binary fractions.

What something costs lives in providers.prices; what was spent lives in the ledger.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

_CENT = Decimal("0.01")
_MICRO = Decimal("0.000001")
_BEYOND = Decimal(10) ** 15  # no amount that anybody reads digit by digit, and none that decimals round to a cent
_TOLD = Decimal(10) ** 9  # no call costs that much: whoever says so says something else
_PLACES = -30  # of ten: less is nothing, and would be written with as many zeros


def usd(amount: Decimal) -> str:
    """Two decimals, and as many more as it takes to tell it to the millionth of a dollar: 5.00, 0.0123."""
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
    """The amount that somebody wrote: 0.1 is a tenth, not the nearest binary fraction."""
    return Decimal(repr(amount))


def told(amount: object) -> Decimal | None:
    """What a provider says that something cost; None: it says nothing that could be an amount."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float, str, Decimal)):
        return None
    try:
        found = Decimal(str(amount))
    except (InvalidOperation, ValueError):  # the latter: a whole number of thousands of digits
        return None
    if not found.is_finite() or not 0 <= found < _TOLD:
        return None
    return +found if found.adjusted() >= _PLACES else Decimal(0)  # with as many digits as decimals reckon with
