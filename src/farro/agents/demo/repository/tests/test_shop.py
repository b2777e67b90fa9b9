"""The shop's prices are right. Run: PYTHONPATH=src python -m unittest discover -s tests"""

import unittest

from shop import total


class Total(unittest.TestCase):
    def test_prices_are_added(self) -> None:
        self.assertEqual(total([10.0, 30.0]), 40.0)

    def test_a_discount_is_a_percentage(self) -> None:
        self.assertEqual(total([10.0, 30.0], 10), 36.0)


if __name__ == "__main__":
    unittest.main()
