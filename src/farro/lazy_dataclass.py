"""Provide a `dataclass` that is built when the class is first used, and otherwise equals the standard library's.

Building a dataclass takes 0.3 to 1 ms, because the source of each method is written and compiled, and importing
`dataclasses` takes nearly as long as starting Python. A command imports more than a hundred of them and uses about a
third, most of them once. So only slots, which cannot be added later, and methods that need no compiling are made at
import. `__eq__`, `__hash__`, `__repr__` and the `__setattr__` of frozen classes are plain functions over the fields.
The first instances are filled by a loop; `__init__` is compiled for a class that makes more of them. The standard
library builds the rest when it is asked for (`fields`, `asdict`, `match`), and classes that inherit fields.
[test_a_lazy_class_equals_that_of_the_standard_library, test_nothing_is_compiled_before_it_is_used]

Several threads may use a class while it is built, and a thread may end while it builds one. So a copy is
built, and the results are put into the class by plain assignments: no attribute is ever missing, and a copy that was
left half built is built again. [test_nothing_is_missing_while_a_class_is_built,
test_an_interrupted_build_is_repeated]

Measured on the modules of `farro ls` without click: 103 ms of CPU time, 123 ms with compiled `__init__`s and
`dataclasses`; on `farro ls --json` 117 and 126 ms (10 alternating pairs).
"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:  # type checkers see the original
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace
    from typing import Any

    def required_fields(shape: Any) -> list[str]: ...

else:
    import threading

    _OPTIONS = {"frozen", "kw_only", "eq", "repr"}
    _LAZY = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
    _LOOPED = 16  # instances that are filled by a loop; it costs each about what a sixteenth of compiling does
    _MISSING = object()
    _building = threading.RLock()  # reentrant: building a class builds its bases

    class field:  # noqa: N801 - named as the standard library's function
        """A field's options: its default, or the function that makes it, and whether it is shown and compared."""

        __slots__ = ("compare", "default", "default_factory", "name", "repr")

        def __init__(self, *, default=_MISSING, default_factory=_MISSING, repr=True, compare=True):  # noqa: A002
            self.default, self.default_factory, self.repr, self.compare = default, default_factory, repr, compare
            self.name = ""

        @property
        def required(self):
            return self.default is _MISSING and self.default_factory is _MISSING

        def of_standard_library(self):
            """Return the same field of the standard library."""
            import dataclasses

            given = {"default": self.default, "default_factory": self.default_factory}
            given = {name: value for name, value in given.items() if value is not _MISSING}
            return dataclasses.field(**given, repr=self.repr, compare=self.compare)

    def replace(instance, /, **changes):
        """Return a copy of the instance with these fields changed, as `dataclasses.replace` does."""
        for each in fields(instance):
            if each.name not in changes:
                changes[each.name] = getattr(instance, each.name)
        return instance.__class__(**changes)

    def dataclass(cls=None, /, *, slots=False, **options):
        if not options.keys() <= _OPTIONS:
            raise TypeError(f"a lazy dataclass has the options {', '.join(sorted(_OPTIONS))} and slots")

        def decorate(cls):
            return _lazy(cls, slots, options)

        return decorate if cls is None else decorate(cls)

    def fields(shape):
        """Return the fields of a dataclass or an instance of one, without building the class if it is a lazy one."""
        kind = shape if isinstance(shape, type) else type(shape)
        for base in kind.__mro__:
            builder = base.__dict__.get("_lazy_builder")
            if builder is not None and not builder.inherits:
                return builder.fields
            if builder is not None or "__dataclass_fields__" in base.__dict__:
                break
        import dataclasses

        return dataclasses.fields(shape)

    def required_fields(shape):
        """Return the names of the fields without a default."""
        return [each.name for each in fields(shape) if _is_required(each)]

    def _is_required(one):
        if isinstance(one, field):
            return one.required
        import dataclasses

        return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING

    def is_dataclass(kind):
        """Tell whether a class is a dataclass, without building it."""
        return any("__dataclass_fields__" in base.__dict__ for base in kind.__mro__)

    def _lazy(source, slots, options):
        """Return the class that programs see; `source` is the class as it stands in the source code."""
        own, frozen = dict(source.__dict__), options.get("frozen", False)
        cls = _slotted(source, frozen) if slots else source
        builder = _Builder(source, own, cls, options)
        cls._lazy_builder = builder
        if "__init__" not in own:
            cls.__init__ = builder.first_init()
        if "__repr__" not in own and options.get("repr", True):
            cls.__repr__ = _repr
        if options.get("eq", True):
            if "__eq__" not in own:
                cls.__eq__ = _eq
            if own.get("__hash__") is None:
                cls.__hash__ = _hash if frozen else None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refusals(cls)
        if not slots:  # as in the standard library, the class keeps a default, and no field
            for name, value in own.items():
                if isinstance(value, field) and value.default is _MISSING:
                    delattr(cls, name)
                elif isinstance(value, field):
                    setattr(cls, name, value.default)
        for name in _LAZY:
            setattr(cls, name, _LazyAttribute(builder, name))
        return cls

    class _LazyAttribute:
        """Build the class when the attribute is read; the result then takes this descriptor's place."""

        def __init__(self, builder, name):
            self._builder, self._name = builder, name

        def __get__(self, instance, owner):
            return getattr(self._builder.build(), self._name)

    class _Builder:
        def __init__(self, source, own, cls, options):
            self._source = source
            self._own = {name: value for name, value in own.items() if name not in ("__dict__", "__weakref__")}
            self._cls = cls
            self._frozen = options.get("frozen", False)
            self._kw_only = options.get("kw_only", False)
            self._options = {**options, "eq": False, "repr": False}
            self._built = False
            self._instances = 0
            self._fields = None
            self.inherits = any("__dataclass_fields__" in base.__dict__ for base in source.__mro__[1:])

        @property
        def fields(self):
            """Return the fields of a class that inherits none."""
            if self._fields is None:
                found = []
                for name in _annotated(self._source):
                    value = self._own.get(name, _MISSING)
                    one = value if isinstance(value, field) else field(default=value)
                    one.name = name
                    found.append(one)
                self._fields = tuple(found)
            return self._fields

        def first_init(self):
            """Return the `__init__` of the first instances. It gives way to a compiled one."""

            def first(this, *args, **values):
                if self.inherits:
                    self.build().__init__(this, *args, **values)
                elif self._instances >= _LOOPED or not self._fill(this, args, values):
                    self._compile()(this, *args, **values)  # which also says what is wrong with the arguments

            return first

        def _fill(self, this, args, values):
            """Set the fields of an instance; return False, with nothing set, when the arguments do not fit."""
            known = self.fields
            if args:
                if self._kw_only or len(args) > len(known):
                    return False
                for each, value in zip(known, args, strict=False):
                    if each.name in values:
                        return False
                    values[each.name] = value
            given = 0
            for each in known:
                if each.name in values:
                    given += 1
                elif each.required:
                    return False
            if given != len(values):
                return False
            for each in known:
                name = each.name
                if name in values:
                    value = values[name]
                elif each.default is _MISSING:
                    value = each.default_factory()
                else:
                    value = each.default
                object.__setattr__(this, name, value)
            self._instances += 1
            if hasattr(this, "__post_init__"):
                this.__post_init__()
            return True

        def _compile(self):
            init = _init(self._cls, self.fields, self._frozen, self._kw_only)
            self._cls.__init__ = init
            return init

        def build(self):
            with _building:
                if not self._built:
                    self._build()
                    self._built = True
            return self._cls

        def _build(self):
            import dataclasses

            source, cls = self._source, self._cls
            own = {
                name: value.of_standard_library() if isinstance(value, field) else value
                for name, value in self._own.items()
            }
            # A docstring, or the standard library would spell out the signature for one.
            copy = type(source)(source.__name__, source.__bases__, {**own, "__doc__": source.__doc__ or "-"})
            copy.__qualname__ = source.__qualname__
            if self.inherits:
                built = dataclasses.dataclass(**self._options)(copy)
                cls.__init__ = built.__dict__["__init__"]
            else:
                built = dataclasses.dataclass(**{**self._options, "frozen": False, "init": False})(copy)
                built.__dataclass_params__.frozen, built.__dataclass_params__.init = self._frozen, True
            for name in _LAZY:
                setattr(cls, name, built.__dict__[name])

    def _init(cls, known, frozen, kw_only):
        """Compile `__init__` alone. The standard library compiles three methods for a frozen class, of which two are
        not used here: that is most of the time of building one."""
        names = {"_MISSING": _MISSING, "_set": object.__setattr__}
        parameters, body = ["self", *(["*"] if kw_only and known else [])], []
        for each in known:
            name = value = parameter = each.name
            if each.default_factory is not _MISSING:
                names[f"_make_{name}"] = each.default_factory
                parameter = f"{name}=_MISSING"
                value = f"_make_{name}() if {name} is _MISSING else {name}"
            elif each.default is not _MISSING:
                names[f"_default_{name}"] = each.default
                parameter = f"{name}=_default_{name}"
            parameters.append(parameter)
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        lines = "\n  ".join(body or ["pass"])
        exec(f"def __init__({', '.join(parameters)}):\n  {lines}", names)  # noqa: S102 - names of fields
        names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return names["__init__"]

    def _annotated(source):
        """Return the names of the fields that the class itself declares."""
        kinds = source.__annotations__.items()
        return [name for name, kind in kinds if not str(kind).startswith(("ClassVar", "typing.ClassVar"))]

    def _slotted(source, frozen):
        """Make the class anew with slots: a class must have them from its beginning."""
        names = _annotated(source)
        inherited = {name for base in source.__mro__ for name in base.__dict__.get("__slots__", ())}
        left_out = {"__dict__", "__weakref__", *names}
        members = {name: value for name, value in source.__dict__.items() if name not in left_out}
        members["__slots__"] = tuple(name for name in names if name not in inherited)
        if frozen:
            members.setdefault("__getstate__", _getstate)
            members.setdefault("__setstate__", _setstate)
        cls = type(source)(source.__name__, source.__bases__, members)
        cls.__qualname__ = source.__qualname__
        return cls

    def _refusals(cls):
        """Return `__setattr__` and `__delattr__` of a frozen class. A child that is no dataclass may set names of its
        own."""

        def refuse_to_set(self, name, value):
            if type(self) is cls or name in cls.__dataclass_fields__:
                from dataclasses import FrozenInstanceError

                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def refuse_to_delete(self, name):
            if type(self) is cls or name in cls.__dataclass_fields__:
                from dataclasses import FrozenInstanceError

                raise FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return refuse_to_set, refuse_to_delete

    def _getstate(self):
        return [getattr(self, each.name) for each in fields(self)]

    def _setstate(self, state):
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    def _repr(self):
        shown = [each.name for each in fields(self) if each.repr]
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _eq(self, other):
        return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_compared(self))

    def _compared(self):
        return tuple(getattr(self, each.name) for each in fields(self) if each.compare)
