"""The walls of the house: which room may import which, no circles, small folders, nothing hidden in strings."""

import ast
import functools
import re
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pplseq"
MAX_FILES = 25  # of one folder: what a reader takes in at a glance
MAX_LINES = 700  # of one file


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def files():
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(text_of(path)))]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def graph():
    """All imports, also those inside functions; those for type checkers alone are no arrows."""
    return grimp.build_graph("pplseq", exclude_type_checking_imports=True, cache_dir=None)


def test_contracts():
    """The contracts of pyproject.toml, by import-linter."""
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def circles(graph) -> list[set[str]]:
    """Sets of modules that import each other in a loop (Tarjan's strongly connected components)."""
    number, low, stack, found = {}, {}, [], []
    sys.setrecursionlimit(10_000)

    def visit(module):
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph.find_modules_directly_imported_by(module):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            part = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(part) > 1:
                found.append(part)

    for module in sorted(graph.modules):
        if module not in number:
            visit(module)
    return found


def test_no_circle_of_files(graph):
    assert circles(graph) == []


def test_the_search_for_circles_finds_them():
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "bc", "ca", "cd", "de"):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [{"a", "b", "c"}]


def test_folders_are_small():
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in {f.parent for f in files()}}
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_files_are_small():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_is_imported_through_a_string():
    """Registries are filled where their room is imported; only the faces of packages name modules in strings."""
    hidden = []
    # modules of a package from outside, which may be absent; loops, of which importing costs more than many a twin's answer
    outside = ("nltk_taggers.py", "compiled.py")
    for path in files():
        if path.name in ("__init__.py", "_lazy.py", *outside):
            continue
        if not re.search(r"import_module|__import__|pplseq(\.\w+)+:\w", text_of(path)):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute | ast.Name):
                word = node.attr if isinstance(node, ast.Attribute) else node.id
                if word in ("import_module", "__import__"):
                    hidden.append(f"{name_of(path)}:{node.lineno} {word}")
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"pplseq(\.\w+)+:\w+", node.value):
                    hidden.append(f"{name_of(path)}:{node.lineno} {node.value!r}")
    assert hidden == []


def test_no_private_name_crosses_a_wall():
    crossing = []
    for path in files():
        if not re.search(r"import\s+(\([^)]*|.*)\b_[a-z]", text_of(path)):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pplseq"):
                names = [alias.name for alias in node.names if re.match(r"_[a-z]", alias.name)]
                crossing += [f"{name_of(path)}:{node.lineno} {name}" for name in names if name != "_lazy"]
    assert crossing == []


def test_text_files_name_their_encoding():
    """Where none is named, it is that of the system: on Windows a code page, and a text of another script is another text."""
    for path in files():
        for node in nodes_of(path) if re.search(r"\bopen\b|read_text", text_of(path)) else ():
            if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
                continue
            binary = any(isinstance(part, ast.Constant) and "b" in str(part.value) for part in node.args[1:])
            opens = getattr(node.func, "id", None) == "open"  # not a method of this name
            assert not (opens and not binary), f"{path}:{node.lineno}"
            assert not (getattr(node.func, "attr", None) == "read_text" and not node.args), f"{path}:{node.lineno}"


def test_text_has_the_same_bytes_on_every_system():
    """Whoever writes text says which ends of lines it has: Windows would take its own, and checksums are of bytes."""
    for path in files():
        for node in nodes_of(path) if re.search(r"\bopen\b|write_text", text_of(path)) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                texts = [value.value for value in node.args if isinstance(value, ast.Constant) and isinstance(value.value, str)]
                said = {keyword.arg for keyword in node.keywords}
                writes = name == "write_text" and "encoding" in said or name == "open" and {"w", "a", "a+"} & set(texts)
                assert not writes or "newline" in said or "closefd" in said, f"{path}:{node.lineno}"


def test_a_room_is_entered_without_torch():
    """`pplseq --help` must stay instant, so importing a room loads neither torch nor pyro."""
    import subprocess

    rooms = [name_of(path) for path in files() if path.name == "__init__.py"]
    code = f"import importlib, sys\nfor room in {rooms!r}: importlib.import_module(room)\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PROGRAMS = [p for p in files() if p.name == "program.py" and p.parts[-3] == "models"]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.parent.name)
def test_a_program_reads_as_its_story(path):
    """`model()`, without its docstring, is about a dozen statements."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef) and node.name == "model":
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1
            assert lines <= 20, f"{name_of(path)}.model has {lines} lines of code"
