"""Which branches of src a process takes: modules of farro are marked as they are imported, and it is written down.

What is made of it lives in scripts/branches.py; `make test` names the folder to write to in FARRO_BRANCHES.

Marked, not traced: a tracer doubles the run, and while an exception is pending in a thread that is blocked in C, as
execution sends them, CPython 3.11 with a tracer turns in place for ever. Marked code is kept like any compiled code, so
that the commands which tests start as processes are measured too. What a process took that is killed is lost.

No import at the head but of what every interpreter has: tests look at what a command imports.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    Branch = tuple[int, int]  # from the line that decides to the line where it goes on; 0 is past its block

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.join(ROOT, "src", "farro")
MARKS = "__branches__"

# Not counted, with what is below them: nothing on the machines that run the tests can take them. Their else is counted.
EXCLUDED = ("TYPE_CHECKING", "sys.platform == 'win32'")


def mark(tree: ast.Module) -> list[Branch]:
    """Put a mark at the beginning of each branch; the answer is all of them."""
    import ast

    branches: list[Branch] = []

    def marked(node: ast.stmt, block: list[ast.stmt]) -> list[ast.stmt]:
        branch = (node.lineno, block[0].lineno if block else 0)
        branches.append(branch)
        (statement,) = ast.parse(f"{MARKS}.add({branch})").body
        for part in ast.walk(statement):
            if "lineno" in part._attributes:
                ast.copy_location(part, node)
        return [statement, *block]

    class Marker(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            if ast.unparse(node.test).startswith(EXCLUDED):
                node.orelse = [self.visit(part) for part in node.orelse]
                return node
            return self.decision(node)

        def decision(self, node: ast.If | ast.For | ast.AsyncFor | ast.While) -> ast.AST:
            self.generic_visit(node)
            node.body = marked(node, node.body)
            if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):  # `while True` has one way
                node.orelse = marked(node, node.orelse)
            return node

        visit_For = visit_AsyncFor = visit_While = decision  # noqa: N815

        def visit_Match(self, node: ast.Match) -> ast.AST:
            self.generic_visit(node)
            for case in node.cases:
                case.body = marked(node, case.body)
            last = node.cases[-1]
            if last.guard or not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None):
                node.cases.append(ast.match_case(ast.MatchAs(), body=marked(node, [])))
            return node

    Marker().visit(tree)
    ast.fix_missing_locations(tree)
    return branches


def start(folder: str, *, copies: bool = False) -> Callable[[], None]:
    """Measure what is imported from now on. The answer writes into the folder what was taken until then; with `copies`,
    a fork's too."""
    from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

    taken: dict[str, set[Branch]] = {}
    code = os.path.join(os.path.dirname(folder), "code")

    class Loader(SourceFileLoader):
        def source_to_code(self, data: bytes, path: str, **options: object) -> object:
            import ast

            tree = ast.parse(data, path)
            mark(tree)
            return compile(tree, path, "exec", dont_inherit=True)

        def exec_module(self, module: object) -> None:
            vars(module)[MARKS] = taken.setdefault(self.path, set())
            super().exec_module(module)

        # The compiled code beside the figures, not beside the source: every other process wants it without marks.
        def get_data(self, path: str) -> bytes:
            return super().get_data(_kept(path))

        def set_data(self, path: str, data: bytes, **options: int) -> None:
            super().set_data(_kept(path), data, **options)

    def _kept(path: str) -> str:
        return os.path.join(code, os.path.relpath(path, SOURCE).replace(os.sep, ".")) if path.endswith(".pyc") else path

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name != "farro" and not name.startswith("farro."):
                return None
            spec = PathFinder.find_spec(name, path, target)
            if spec and spec.origin and spec.origin.startswith(SOURCE + os.sep):
                spec.loader = Loader(name, spec.origin)
            return spec

    sys.meta_path.insert(0, Finder)
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid and not copies:
            return  # a copy of this process
        with open(os.path.join(folder, f"{os.getpid()}.txt"), "a", encoding="utf-8") as file:
            for path, branches in list(taken.items()):
                name = os.path.relpath(path, ROOT)
                file.write("".join(f"{name} {source} {target}\n" for source, target in branches.copy()))

    return write


def command(folder: str) -> str:
    """A `farro` that measures itself, for tests that start it as a process. It stands beside the figures."""
    path = os.path.join(folder, "farro")
    script = f"""#!{sys.executable}
import sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import measured
del sys.path[0]
write = measured.start({folder!r})
from farro.__main__ import main
try:
    main()
finally:
    try:
        write()
    except OSError:
        pass  # a test took away what it needs for that
"""
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(file.name, 0o755)
    os.replace(file.name, path)
    return path
