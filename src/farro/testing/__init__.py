"""The contract suites of farro's ports, for packages that write an adapter: `pip install 'farro[testing]'`.

A suite is a module of pytest tests. Your test module imports all of it and defines the fixture that it asks for, which
yields your adapter:

    from farro.testing.store import *

    @pytest.fixture
    def kit(tmp_path): ...

| port | suites | fixture |
|---|---|---|
| Store | `store`, `store_batches`, `store_queries`, `store_names`, `store_audit` | `kit`: a `StoreKit` |
| Runner | `runner` | `bench`: a `RunnerBench` |
| Runtime | `runtime` | `bench`: a `RuntimeBench` |
| Bus | `bus` | `open_bus`: opens the bus as another process does |
| Provider | `provider` | `stage`: a `ProviderStage` |

docs/adapters.md shows each. farro's own adapters are tested with the same suites, in tests/contracts.
"""

import pytest

STORE_SUITES = ("store", "store_batches", "store_queries", "store_names", "store_audit")
SUITES = (*STORE_SUITES, "runner", "runtime", "bus", "provider")

pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in SUITES))
