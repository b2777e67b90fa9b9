"""Check parsed data against a frozen dataclass, and report every fault with its path.

The annotations of the dataclass are the rules. Checking is strict: nothing is converted, except
that a whole number is accepted as a float and a list as a tuple, because JSON writes them so. `true` is not a number,
and unknown members are faults with a hint. Rules beyond the type are `constraints` in the annotation.

Each class is compiled into plain functions once, at first use: a job's plan is checked on every claim, and a command
must not pay for sections that its config does not have.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from farro.documents.constraints import AnyCase, Constraint, Size
from farro.documents.model import MAX_PROBLEMS, Document, Path, did_you_mean, refusal, show
from farro.lazy_dataclass import fields, is_dataclass, required_fields

T = TypeVar("T")


class Fault(NamedTuple):
    """One fault. `unknown`: a member that the dataclass does not have."""

    path: Path
    message: str
    key: bool = False  # the fault is in the name of the member, not in its value
    unknown: bool = False


class Checked(NamedTuple, Generic[T]):
    """The result of a check. `value` is None when there are faults other than unknown members."""

    value: T | None
    faults: list[Fault]

    def accepted(self, document: Document, more: Iterable[Fault] = ()) -> T:
        """Return the value; raise BadDocument with every fault, `more` included, and its position in the document."""
        faults = [*self.faults, *more]
        if self.value is None or faults:
            problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in faults]
            raise refusal(document.source, problems)
        return self.value


class _Invalid:
    """Marks an invalid value; no dataclass is built with it."""


_INVALID = _Invalid()
_Read = Callable[[Any, Path, list[Fault]], Any]  # returns the value for the dataclass, or _INVALID after adding a fault


def check(shape: type[T], data: Any) -> Checked[T]:
    """Build the dataclass from `data`, and list every fault in the order of the data."""
    faults: list[Fault] = []
    value = _reader_of_class(shape)(data, (), faults)
    return Checked(None if value is _INVALID else value, faults)


def member_names(shape: Any) -> list[str]:
    """Return the member names of a dataclass."""
    return [each.name for each in fields(shape)]


_readers: dict[type, _Read] = {}


def _reader_of_class(shape: type) -> _Read:
    """Compile the reader of a class, once."""
    if shape not in _readers:
        _readers[shape] = _object(shape)
    return _readers[shape]


def _object(shape: Any) -> _Read:
    hints = typing.get_type_hints(shape, include_extras=True)
    readers = {name: _reader(hints[name]) for name in member_names(shape)}
    required = required_fields(shape)
    takes_more = bool(getattr(shape, "takes_more", False))

    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return _expected("an object", value, path, faults)
        members: dict[str, Any] = {}
        whole = True
        for name, member in value.items():
            reader = readers.get(name)
            if reader is not None:
                members[name] = found = reader(member, (*path, name), faults)
                whole = whole and found is not _INVALID
            elif not takes_more:
                faults.append(Fault((*path, name), _unknown(name, readers, faults), key=True, unknown=True))
        for name in required:
            if name not in value:
                whole = False
                faults.append(Fault((*path, name), "is required"))
        return shape(**members) if whole else _INVALID

    return read


def _reader(hint: Any) -> _Read:
    """Compile the reader of an annotation."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, *constraints = typing.get_args(hint)
        reader = _reader(inner)
        if any(isinstance(each, AnyCase) for each in constraints):
            reader = _any_case(reader)
        return _constrained(reader, constraints)
    if (of_text := getattr(hint, "of_text", None)) is not None:  # a class built from text, such as Secret of the config
        return _made(of_text)
    if isinstance(hint, type) and is_dataclass(hint):
        shape: type = hint
        return lambda value, path, faults: _reader_of_class(shape)(value, path, faults)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[1:] == (...,):
        return _list(_reader(arguments[0]))
    if arguments == (str, Any):  # names in JSON are text
        return _as_it_is
    if origin is dict:
        return _dict(_reader(arguments[0]), _reader(arguments[1]))
    if origin is Literal:
        return _literal(arguments)
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional(_reader(next(each for each in arguments if each is not type(None))))
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and bool in arguments:
        return _flag_or_list(_reader(next(each for each in arguments if each is not bool)))
    if hint is Any:
        return lambda value, path, faults: value
    if hint is float:
        return _float
    return _exactly(hint)


def _made(of_text: Callable[[str], Any]) -> _Read:
    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if type(value) is not str:
            return _expected("text", value, path, faults)
        try:
            return of_text(value)
        except ValueError as error:
            faults.append(Fault(path, str(error)))
            return _INVALID

    return read


_EXPECTED = {str: "text", int: "a whole number", bool: "true or false"}


def _exactly(kind: Any) -> _Read:
    if kind not in _EXPECTED:
        raise TypeError(f"{kind} is not an annotation that a document can be checked against")
    expected = _EXPECTED[kind]

    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        return value if type(value) is kind else _expected(expected, value, path, faults)  # bool is a subclass of int

    return read


def _float(value: Any, path: Path, faults: list[Fault]) -> Any:
    if type(value) is not float:
        if type(value) is not int:
            return _expected("a number", value, path, faults)
        try:
            value = float(value)
        except OverflowError:
            value = float("inf")
    if value - value != 0:  # inf and nan
        faults.append(Fault(path, "must be a finite number"))
        return _INVALID
    return value


def _optional(inner: _Read) -> _Read:
    return lambda value, path, faults: None if value is None else inner(value, path, faults)


def _flag_or_list(of_list: _Read) -> _Read:
    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if isinstance(value, list):
            return of_list(value, path, faults)
        return value if isinstance(value, bool) else _expected("true, false or a list", value, path, faults)

    return read


def _literal(words: tuple[Any, ...]) -> _Read:
    *rest, last = map(repr, words)
    expected = f"{', '.join(rest)} or {last}" if rest else last

    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if type(value) is not str:
            return _expected(expected, value, path, faults)
        if value not in words:
            faults.append(Fault(path, f"must be {expected}, not another word"))
            return _INVALID
        return value

    return read


def _any_case(inner: _Read) -> _Read:
    return lambda value, path, faults: inner(value.lower() if type(value) is str else value, path, faults)


def _list(item: _Read) -> _Read:
    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if not isinstance(value, list):
            return _expected("a list", value, path, faults)
        found = tuple([item(each, (*path, index), faults) for index, each in enumerate(value)])
        return _INVALID if _INVALID in found else found

    return read


def _as_it_is(value: Any, path: Path, faults: list[Fault]) -> Any:
    return dict(value) if isinstance(value, dict) else _expected("an object", value, path, faults)


def _dict(key: _Read, item: _Read) -> _Read:
    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return _expected("an object", value, path, faults)
        found = {}
        whole = True
        for name, member in value.items():
            wrong: list[Fault] = []
            whole = key(name, (*path, name), wrong) is not _INVALID and whole
            faults.extend(each._replace(key=True) for each in wrong)
            found[name] = item(member, (*path, name), faults)
            whole = whole and found[name] is not _INVALID
        return found if whole else _INVALID

    return read


def _constrained(inner: _Read, constraints: list[Constraint]) -> _Read:
    sizes = [each for each in constraints if isinstance(each, Size)]
    others = [each for each in constraints if not isinstance(each, Size)]

    def read(value: Any, path: Path, faults: list[Fault]) -> Any:
        if isinstance(value, list):  # before its items: those of a list that is too long are not checked
            for size in sizes:
                if message := size.fault(value):
                    faults.append(Fault(path, message))
                    return _INVALID
        found = inner(value, path, faults)
        if found is not _INVALID:
            for constraint in others:
                if message := constraint.fault(value):  # the value as written: 0, not 0.0
                    faults.append(Fault(path, message))
                    return _INVALID
        return found

    return read


def _expected(what: str, value: Any, path: Path, faults: list[Fault]) -> _Invalid:
    faults.append(Fault(path, f"must be {what}, not {_describe(value)}"))
    return _INVALID


def _describe(value: object) -> str:
    """Describe a value; never quote text, which may be a secret."""
    if value is None or isinstance(value, bool):
        return show(value)
    if isinstance(value, (int, float)):
        return f"the number {show(value)}"
    return {"str": "text", "list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)


def _unknown(name: str, known: Collection[str], before: list[Fault]) -> str:
    if len(before) >= MAX_PROBLEMS:  # no more are shown, and a hostile document may hold a hundred thousand
        return "is not a known field"
    return f"is not a known field; {did_you_mean(name, known, 'known: ' + ', '.join(known))}"
