"""`dataclass`, as the standard library's, but most of it is made when the class is first used.

What a class means is the standard library's alone: its fields, its `__init__`, what `replace` and `fields` say.

To make a dataclass takes a millisecond: the source of each method is written and compiled. A command imports a hundred
of them and uses some; a quarter of its time went there. So only what cannot wait is done at once (slots), and what
needs no compiling; the rest follows with the first instance, or when somebody asks for the fields.
[test_a_late_class_is_what_the_standard_library_makes, test_nothing_is_compiled_before_it_is_used]

Threads meet a class at any moment of its making, and one may be ended in the middle of it. So the making is done on a
copy, and what is made is put into the class by plain assignments: nothing is ever missing there, and a copy that was
left half made is made again. [test_nothing_is_missing_while_a_class_is_made,
test_a_making_that_was_interrupted_is_made_again]
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

    _OPTIONS = {"frozen", "kw_only", "eq", "repr"}
    _MADE_LATE = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
    _making = threading.RLock()  # one class is asked for in the making of another

    def dataclass(cls=None, /, *, slots=False, **options):
        if not options.keys() <= _OPTIONS:
            raise TypeError(f"a late dataclass knows {', '.join(sorted(_OPTIONS))} and slots")

        def promised(cls):
            return _promised(cls, slots, options)

        return promised if cls is None else promised(cls)

    def _promised(written, slots, options):
        """The class that everybody sees; `written` is how it stands in the source."""
        own, frozen = dict(written.__dict__), options.get("frozen", False)
        cls = _slotted(written, frozen) if slots else written
        promise = _Promise(written, own, cls, options)
        if "__init__" not in own:
            cls.__init__ = promise.first_init()
        if "__repr__" not in own and options.get("repr", True):
            cls.__repr__ = _told
        if options.get("eq", True):
            if "__eq__" not in own:
                cls.__eq__ = _equal
            if own.get("__hash__") is None:
                cls.__hash__ = _hashed if frozen else None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refusing(cls)
        for name in _MADE_LATE:
            setattr(cls, name, _Waiting(promise, name))
        return cls

    class _Waiting:
        """Stands where something will be, until somebody looks."""

        def __init__(self, promise, name):
            self._promise, self._name = promise, name

        def __get__(self, instance, owner):
            return getattr(self._promise.kept(), self._name)

    class _Promise:
        def __init__(self, written, own, cls, options):
            self._written = written
            self._own = {name: value for name, value in own.items() if name not in ("__dict__", "__weakref__")}
            self._cls = cls
            self._options = {**options, "eq": False, "repr": False}
            self._kept = False

        def first_init(self):
            """The `__init__` of the first instance."""

            def first(this, *args, **values):
                self.kept().__init__(this, *args, **values)

            return first

        def kept(self):
            """The class, whole."""
            with _making:
                if not self._kept:
                    self._keep()
                    self._kept = True
            return self._cls

        def _keep(self):
            written, cls = self._written, self._cls
            copy = type(written)(written.__name__, written.__bases__, dict(self._own))
            copy.__qualname__ = written.__qualname__
            made = dataclasses.dataclass(**self._options)(copy)
            for name in (*_MADE_LATE, "__init__"):
                setattr(cls, name, made.__dict__[name])
            if written is cls:  # a default stands in the class, as it is or not at all
                for field in made.__dataclass_fields__.values():
                    if isinstance(cls.__dict__.get(field.name), dataclasses.Field):
                        if field.default is dataclasses.MISSING:
                            delattr(cls, field.name)
                        else:
                            setattr(cls, field.name, field.default)

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

    def _refusing(cls):
        """What a frozen class says to whoever would change an instance. A child that is no dataclass may have names of
        its own."""

        def refuse_to_set(self, name, value):
            if type(self) is cls or name in cls.__dataclass_fields__:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def refuse_to_delete(self, name):
            if type(self) is cls or name in cls.__dataclass_fields__:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return refuse_to_set, refuse_to_delete

    def _state(self):
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def _restored(self, state):
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    def _told(self):
        shown = [field.name for field in dataclasses.fields(self) if field.repr]
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _equal(self, other):
        return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented

    def _hashed(self):
        return hash(_compared(self))

    def _compared(self):
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)
