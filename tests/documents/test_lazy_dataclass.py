"""Compare lazy dataclasses with those of the standard library: they differ only in when they are built."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from farro import lazy_dataclass

T = TypeVar("T")
Kind = Callable[..., Any]


def family(dataclass: Kind) -> dict[str, Any]:
    """Return the same classes, made by either decorator."""
    field = lazy_dataclass.field if dataclass is lazy_dataclass.dataclass else dataclasses.field

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Step:
        name: str
        args: tuple[str, ...] = ()
        env: dict[str, str] = field(default_factory=dict, compare=False)
        secret: str = field(default="", repr=False)
        shared: ClassVar[int] = 7

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("no name")

        @property
        def loud(self) -> str:
            return self.name.upper()

    @dataclass(frozen=True, kw_only=True, slots=True)
    class More(Step):
        name: str = "more"
        extra: int = 0

    @dataclass(frozen=True, kw_only=True)
    class Plain:
        a: int
        b: list[int] = field(default_factory=list)

    @dataclass(frozen=True, kw_only=True)
    class Wider(Plain):
        c: str = "c"

    @dataclass
    class Loose:
        x: int
        y: int = 2

    @dataclass(slots=True)
    class Boxed(Generic[T]):
        content: T

    @dataclass(frozen=True, eq=False)
    class Alone:
        a: int = 1

    @dataclass(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 3

    @dataclass(kw_only=True)
    class Written:
        a: int = 0

        def __init__(self, twice: int) -> None:
            self.a = 2 * twice

    class Child(Loose):
        def __init__(self, x: int) -> None:
            super().__init__(x, 9)

    kinds = (Step, More, Plain, Wider, Loose, Boxed, Alone, Own, Written, Child)
    return {kind.__name__: kind for kind in kinds}


def outcome(act: Callable[[], Any]) -> Any:
    """Return the result as a text that does not name the kind of class."""
    try:
        return str(act()).replace("<locals>.", "")
    except Exception as error:  # the kinds of errors are compared, too
        return type(error).__name__, str(error).replace("first()", "__init__()")


ACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "defaults": lambda kinds: kinds["Step"](name="a"),
    "all given": lambda kinds: kinds["Step"](name="a", args=("b",), env={"c": "d"}, secret="e"),
    "inherited": lambda kinds: kinds["More"](extra=3),
    "inherited again": lambda kinds: kinds["Wider"](a=1, c="d"),
    "a method": lambda kinds: kinds["More"](name="low").loud,
    "a default is made each time": lambda kinds: kinds["Plain"](a=1).b is kinds["Plain"](a=1).b,
    "by position": lambda kinds: kinds["Loose"](1, 3),
    "too few": lambda kinds: kinds["Plain"](),
    "too many": lambda kinds: kinds["Loose"](1, 2, 3),
    "unknown": lambda kinds: kinds["Step"](name="a", nmae="b"),
    "refused by itself": lambda kinds: kinds["Step"](name=""),
    "its own init": lambda kinds: kinds["Written"](4).a,
    "a child's init": lambda kinds: kinds["Child"](1),
    "generic": lambda kinds: kinds["Boxed"][int](5),
    "shared by all": lambda kinds: (kinds["Step"].shared, kinds["Step"](name="a").shared),
    "equal": lambda kinds: kinds["Step"](name="a") == kinds["Step"](name="a", env={"x": "y"}),
    "not equal": lambda kinds: kinds["Step"](name="a") == kinds["Step"](name="b"),
    "of another class": lambda kinds: kinds["Plain"](a=1) == kinds["Wider"](a=1),
    "eq is off": lambda kinds: kinds["Alone"]() == kinds["Alone"](),
    "its own eq": lambda kinds: kinds["Own"](1) == kinds["Own"](2),
    "its own repr": lambda kinds: repr(kinds["Own"](1)),
    "hashes agree": lambda kinds: len({kinds["Step"](name="a"), kinds["Step"](name="a")}),
    "its own hash": lambda kinds: hash(kinds["Own"](1)),
    "no hash": lambda kinds: hash(kinds["Loose"](1)),
    "a hash of lists": lambda kinds: hash(kinds["Plain"](a=1)),
    "frozen": lambda kinds: setattr(kinds["Plain"](a=1), "a", 2),
    "frozen with slots": lambda kinds: setattr(kinds["Step"](name="a"), "name", "b"),
    "frozen, removed": lambda kinds: delattr(kinds["Step"](name="a"), "name"),
    "not frozen": lambda kinds: setattr(kinds["Loose"](1), "x", 5),
    "no other names": lambda kinds: setattr(kinds["Boxed"](1), "other", 2),
    "slots": lambda kinds: [kinds[name].__slots__ for name in ("Step", "More", "Boxed", "Own")],
    "no dict": lambda kinds: hasattr(kinds["More"](), "__dict__"),
    "fields": lambda kinds: [[f.name for f in dataclasses.fields(kind)] for kind in kinds.values()],
    "is one": lambda kinds: [dataclasses.is_dataclass(kind) for kind in kinds.values()],
    "replaced": lambda kinds: dataclasses.replace(kinds["More"](extra=1), name="z"),
    "as a dict": lambda kinds: dataclasses.asdict(kinds["Wider"](a=1, b=[2])),
    "match args": lambda kinds: [kind.__match_args__ for kind in kinds.values()],
    "copied": lambda kinds: copy.copy(kinds["Step"](name="a", secret="s")).secret,
    "copied deeply": lambda kinds: copy.deepcopy(kinds["More"](env={"a": "b"})).env,
    "state": lambda kinds: kinds["Step"](name="a").__getstate__(),
    "names": lambda kinds: [kind.__name__ for kind in kinds.values()],
}


@pytest.mark.parametrize("first", [None, "fields", "match args"])
@pytest.mark.parametrize("name", ACTS)
def test_a_lazy_class_equals_that_of_the_standard_library(name: str, first: str | None) -> None:
    """The first use of a class may be of any kind."""
    ours, theirs = family(lazy_dataclass.dataclass), family(dataclasses.dataclass)
    if first is not None:
        assert outcome(lambda: ACTS[first](ours)) == outcome(lambda: ACTS[first](theirs))
    assert outcome(lambda: ACTS[name](ours)) == outcome(lambda: ACTS[name](theirs))


def test_instances_made_without_init_are_equal_too() -> None:
    ours = family(lazy_dataclass.dataclass)["Plain"]
    one, other = object.__new__(ours), object.__new__(ours)
    for instance in (one, other):
        instance.__dict__.update(a=1, b=[])
    assert one == other
    assert repr(one).endswith("Plain(a=1, b=[])")


FIRST_LOOKS: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda kinds: kinds["More"](name="n").name,
    lambda kinds: kinds["Wider"](a=1).c,
    lambda kinds: kinds["Plain"](a=1).a,
    lambda kinds: len(dataclasses.fields(kinds["Wider"])),
    lambda kinds: kinds["Loose"](1).y,
    lambda kinds: len(dataclasses.fields(kinds["More"])),
)


def test_threads_that_use_a_new_class_together_get_whole_instances() -> None:
    """Each thread starts with another use of the classes, at any moment while another thread builds them."""
    expected = [look(family(dataclasses.dataclass)) for look in FIRST_LOOKS]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            kinds = family(lazy_dataclass.dataclass)
            start = threading.Barrier(len(FIRST_LOOKS))

            def look(
                first: Callable[[dict[str, Any]], Any],
                kinds: dict[str, Any] = kinds,
                start: threading.Barrier = start,
            ) -> Any:
                start.wait()
                return first(kinds)

            with ThreadPoolExecutor(len(FIRST_LOOKS)) as threads:
                assert list(threads.map(look, FIRST_LOOKS)) == expected
    finally:
        sys.setswitchinterval(before)


def first_instance(kinds: dict[str, Any], name: str, at_each_call: Callable[[int], None]) -> Any:
    """Create the first instance of a class, and run `at_each_call` at each call that this makes."""
    calls = itertools.count(1)

    def another(frame: object, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            at_each_call(next(calls))

    gc.disable()  # calls of the collector would disturb the count
    sys.setprofile(another)
    try:
        return kinds[name](**({"a": 1} if name == "Wider" else {}))
    finally:
        sys.setprofile(None)
        gc.enable()


@pytest.mark.parametrize("name", ["Wider", "More"])
def test_nothing_is_missing_while_a_class_is_built(name: str) -> None:
    kinds = family(lazy_dataclass.dataclass)
    needed = {"__init__", "__repr__", "__eq__", "__hash__", "__dataclass_fields__", "__dataclass_params__"}
    seen = 0

    def look(call: int) -> None:
        nonlocal seen
        seen = call
        for kind in (kinds[name], kinds[name].__bases__[0]):
            assert needed <= kind.__dict__.keys()

    first_instance(kinds, name, look)
    assert seen > 50, "there were calls to look at"


@pytest.mark.parametrize("name", ["Wider", "More"])
def test_an_interrupted_build_is_repeated(name: str) -> None:
    """Interrupt each call of the build in turn, as Ctrl-C or the end of a function's thread does."""
    expected = outcome(lambda: first_instance(family(dataclasses.dataclass), name, lambda call: None))
    for point in itertools.count(1):
        kinds = family(lazy_dataclass.dataclass)
        interrupted = False

        def interrupt(call: int, point: int = point) -> None:
            nonlocal interrupted
            if call == point:
                interrupted = True
                sys.setprofile(None)
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt, RuntimeError):  # Python wraps an error in __set_name__ so
            first_instance(kinds, name, interrupt)
        assert outcome(lambda kinds=kinds: first_instance(kinds, name, lambda call: None)) == expected, point
        if not interrupted:
            break
    assert point > 50, "there were calls to be interrupted at"


def test_nothing_is_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = dataclasses._process_class  # type: ignore[attr-defined]
    monkeypatch.setattr(
        dataclasses, "_process_class", lambda cls, *more: (made.append(cls.__name__), real(cls, *more))[1]
    )
    kinds = family(lazy_dataclass.dataclass)
    assert made == []
    kinds["More"]()
    assert made == ["More", "Step"] or made == ["Step", "More"], "with the classes of its fields"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="frozen"):
        lazy_dataclass.dataclass(order=True)  # type: ignore[call-overload, unused-ignore]


def test_an_instance_can_be_pickled() -> None:
    from farro.jobs.envelope import Lifecycle
    from farro.store.port import Submission

    one = Submission(role="Runner", prompt={"a": 1})
    assert pickle.loads(pickle.dumps(one)) == one
    assert Lifecycle.__dataclass_fields__


def test_a_command_builds_few_of_the_classes_that_it_imports() -> None:
    """Check the purpose of lazy dataclasses: a hundred and sixty are imported, about twenty are built for constants."""
    script = (
        "import dataclasses, sys\n"
        "made, real = [], dataclasses._process_class\n"
        "dataclasses._process_class = lambda cls, *more: (made.append(cls), real(cls, *more))[1]\n"
        "import farro.cli.jobs, farro.app, farro.worker.worker\n"
        "print(sum(cls.__module__.startswith('farro.') for cls in made))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 30
