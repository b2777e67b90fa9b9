"""Check amounts as people read them and as providers report them: no reported value may spoil the ledger."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.roles.money import reported_cost, usd


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("5", "5.00"),
        ("0", "0.00"),
        ("0.0123", "0.0123"),
        ("0.0000001", "under 0.000001"),
        ("123456789012345.678", "123456789012345.678"),
        ("1e30", "1.00e+30"),
        ("1e300", "1.00e+300"),
    ],
)
def test_an_amount_is_printed_to_the_millionth(amount: str, text: str) -> None:
    assert usd(Decimal(amount)) == text


@pytest.mark.parametrize(
    ("said", "amount"),
    [
        (0.25, "0.25"),
        ("0.25", "0.25"),
        (0, "0"),
        ("1e-999999", "0"),
        ("0e-999999", "0"),
        (1e30, None),
        ("1e999999", None),
        pytest.param(10**5000, None, id="many digits"),
        (-1, None),
        ("nan", None),
        ("free", None),
        (True, None),
        (None, None),
    ],
)
def test_a_value_that_cannot_be_a_cost_is_none(said: object, amount: str | None) -> None:
    assert reported_cost(said) == (None if amount is None else Decimal(amount))


@given(st.decimals(allow_nan=True, allow_infinity=True) | st.floats() | st.integers() | st.text(max_size=50))
def test_every_reported_cost_can_be_written_and_summed(said: object) -> None:
    amount = reported_cost(said)
    if amount is not None:
        assert len(f"{amount:f}") < 100
        assert usd(amount + amount)
