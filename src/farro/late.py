"""`dataclass`, as the standard library's, but most of it is made when the class is first used.

What a class means is the standard library's alone: its fields, its `__init__`, what `replace` and `fields` say.

To make a dataclass takes one to two milliseconds: the source of each method is written and compiled. A command imports
a hundred of them and uses some; half of its time went there. So only what cannot wait is done at once (slots), and what
needs no compiling; the rest follows with the first instance, or when somebody asks for the fields.
[test_a_late_class_is_what_the_standard_library_makes, test_nothing_is_compiled_before_it_is_used]
"""

from __future__ import annotations

from dataclasses import field as field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who checks types knows the original
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    import inspect
    import threading

    _WAITING = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
    _OPTIONS = {"frozen", "kw_only", "eq", "repr"}
    _making = threading.RLock()  # one class is asked for in the making of another

    def dataclass(cls=None, /, *, slots=False, **options):
        if not options.keys() <= _OPTIONS:
            raise TypeError(f"a late dataclass knows {', '.join(sorted(_OPTIONS))} and slots")
        promised = lambda cls: _promised(cls, slots, options)  # noqa: E731
        return promised if cls is None else promised(cls)

    def _promised(written, slots, options):
        """The class that everybody sees; `written` is how it stands in the source."""
        own, frozen = written.__dict__, options.get("frozen", False)
        defined = {name for name in ("__init__", "__repr__", "__eq__") if name in own}
        hashed = own.get("__hash__") is not None
        cls = _slotted(written, frozen) if slots else written
        promise = _Promise(written, cls, options)
        if "__init__" not in defined:
            cls.__init__ = promise.first()
        if "__repr__" not in defined and options.get("repr", True):
            cls.__repr__ = _told
        if options.get("eq", True):
            if "__eq__" not in defined:
                cls.__eq__ = _equal
            if not hashed:
                cls.__hash__ = _hashed if frozen else None
        if frozen and slots:
            cls.__setattr__, cls.__delattr__ = _not_set, _not_deleted
        for name in _WAITING:
            setattr(cls, name, _Waiting(promise, name))
        return cls

    class _Waiting:
        """Stands where something will be, until somebody looks."""

        def __init__(self, promise, name):
            self._promise, self._name = promise, name

        def __get__(self, instance, owner):
            return getattr(self._promise.keep(), self._name)

    class _Promise:
        def __init__(self, written, cls, options):
            self._written, self._cls = written, cls
            self._options = {**options, "eq": False, "repr": False}
            self._first = None

        def first(self):
            """The `__init__` of the first instance."""

            def first(this, *args, **values):
                self.keep()
                self._cls.__init__(this, *args, **values)

            self._first = first
            return first

        def keep(self):
            """The class, whole."""
            with _making:
                written, cls = self._written, self._cls
                if written is None:
                    return cls  # another thread was faster
                for name in _WAITING:
                    delattr(cls, name)
                if written is cls and self._first is not None:
                    del cls.__init__
                dataclasses.dataclass(**self._options)(written)
                if cls is not written:
                    for name in ("__init__", *_WAITING):
                        setattr(cls, name, written.__dict__[name])
                self._written = None
                return cls

    def _slotted(written, frozen):
        """The same with slots: a class must have them from its beginning."""
        kinds = inspect.get_annotations(written)
        names = [name for name, kind in kinds.items() if not str(kind).startswith(("ClassVar", "typing.ClassVar"))]
        inherited = {name for base in written.__mro__ for name in base.__dict__.get("__slots__", ())}
        left_out = {"__dict__", "__weakref__", *names}
        members = {name: value for name, value in written.__dict__.items() if name not in left_out}
        members["__slots__"] = tuple(name for name in names if name not in inherited)
        if frozen:
            members.setdefault("__getstate__", _state)
            members.setdefault("__setstate__", _restored)
        cls = type(written)(written.__name__, written.__bases__, members)
        cls.__qualname__ = written.__qualname__
        return cls

    def _state(self):
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def _restored(self, state):
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    def _not_set(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _not_deleted(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _told(self):
        shown = [field.name for field in dataclasses.fields(self) if field.repr]
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _equal(self, other):
        return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented

    def _hashed(self):
        return hash(_compared(self))

    def _compared(self):
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)
