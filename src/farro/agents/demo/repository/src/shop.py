"""The shop's prices. What is in stock lives elsewhere."""


def total(prices: list[float], discount: float = 0) -> float:
    """What a customer pays; `discount` is in percent."""
    return round(sum(prices) - discount, 2)
