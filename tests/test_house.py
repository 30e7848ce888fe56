"""The house: which room may use which, how large anything in it may be, what the front door shows, how light it is."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import sophon

SOURCE = Path(sophon.__file__).parent
# From the ground up; a room may use those on the floors below it. Rooms on one floor do not use each other.
FLOORS = [
    {"errors", "units", "artifact", "bundle", "version"},
    {"process"},
    {"pipeline", "store"},
    {"codec"},
    {"profile"},
    {"plan"},
    {"link"},
    {"server", "loader"},
    {"cluster"},
    {"report", "doctor", "bench", "ray"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# The same inside the loader. Files that are named nowhere here are what users hold in hand: they are on top of it all.
LOADER_FLOORS = [
    {"torch_import"},
    {"machine", "order", "account"},
    {"sources"},
    {"opening", "planning"},
    {"epoch"},
]

MOST_MODULES = 20  # in one folder: as many as one can look over
MOST_LINES = 60  # of one function, without its docstring
MOST_PARAMETERS = 15
MANY_PARAMETERS = {
    "loader/loader.py DataLoader.__init__",  # torch's own has 18, and a loader is all that many users ever see
}
LONG = re.compile(r"# long: \S")  # with the reason; on the line of the `def` or the one above it


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "sophon" and len(parts) > 1 else None


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            found.add(module)
            if (SOURCE.parent / module.replace(".", "/")).is_dir():  # then the names may be modules
                found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def _files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" or path.parent != SOURCE]


def test_dependencies_point_down_only():
    wrong = []
    for path in _files():
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert here in LEVEL, f"{path} is in no room of the house"
        for module in _imports(path):
            there = _room(module)
            if there and there != here and LEVEL.get(there, -1) >= LEVEL[here] and LEVEL[here] > 0:
                wrong.append(f"{path.relative_to(SOURCE)} → {module}")
    assert not wrong


def test_only_the_loader_and_the_benchmarks_import_torch():
    wrong = [
        str(path.relative_to(SOURCE))
        for path in _files()
        if path.relative_to(SOURCE).parts[0] not in ("loader", "bench")
        and any(module.split(".")[0] in ("torch", "torchvision") for module in _imports(path))
    ]
    assert not wrong


# Between a loader and the processes that it has started itself, over sockets without a name.
PICKLES = {"loader/epoch/parcel.py"}


def test_nothing_from_outside_is_unpickled_and_nothing_is_evaluated():
    for path in _files():
        tree = _tree(path)
        if path.relative_to(SOURCE).as_posix() not in PICKLES:
            assert not _imports(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
        calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec", "compile"}, path


# `open_picture` is what opens files; the other compares Pillow with itself on pictures that it has just made.
OPENS_PICTURES = {"pipeline/ops/decode.py", "pipeline/jpeg/libjpeg.py"}


def test_pictures_of_somebody_else_are_opened_in_one_place_only():
    """Pillow knows formats that are programs, and looks at every one of them unless it is told which to expect."""
    for path in _files():
        where = path.relative_to(SOURCE)
        if where.as_posix() in OPENS_PICTURES or where.parts[0] == "bench":  # which measures Pillow on its own photos
            continue
        opens = {"Image.open", "PIL.Image.open", "ImageFile.Parser"}
        used = {ast.unparse(n) for n in ast.walk(_tree(path)) if isinstance(n, ast.Attribute)}
        assert not used & opens, f"{where}: use sophon.pipeline.ops.decode.open_picture"
        assert not any(m.startswith("PIL.") and m.endswith("ImagePlugin") for m in _imports(path)), where


# `parquet_rows` reads files of somebody else, `artifact` those that this project has saved, whose columns it knows.
READS_PARQUET = {"store/parquet_rows.py", "artifact.py"}


def test_rows_of_parquet_files_are_read_in_one_place_only():
    """A few kilobytes may stand for gigabytes: nothing but footers is read without bounds."""
    unbounded = {f"pq.{name}" for name in ("ParquetFile", "read_table", "ParquetDataset", "read_pandas")}
    for path in _files():
        where = path.relative_to(SOURCE)
        if where.as_posix() in READS_PARQUET or where.parts[0] == "bench":
            continue
        used = {ast.unparse(n.func) for n in ast.walk(_tree(path)) if isinstance(n, ast.Call)}
        assert not used & unbounded, f"{where}: use sophon.store.parquet_rows.open_parquet"
        assert not _imports(path) & {"pyarrow.dataset"}, where


def test_files_are_replaced_in_one_place_only():
    """`artifact.replacing` alone renames: elsewhere a half-written file, or litter, would be one slip away."""
    wrong = []
    for path in _files():
        for node in ast.walk(_tree(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            # str.replace has two arguments, Path.replace has one.
            renames = node.func.attr in ("rename", "renames") or (node.func.attr == "replace" and len(node.args) == 1)
            if renames or ast.unparse(node.func) == "os.replace":
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert len(wrong) == 1, wrong
    assert wrong[0].startswith("artifact.py")


def test_only_the_cli_prints():
    for path in _files():
        if path.relative_to(SOURCE).parts[0] != "cli":
            tree = _tree(path)
            assert not any(isinstance(n, ast.Name) and n.id == "print" for n in ast.walk(tree)), path


def test_dependencies_point_down_inside_the_loader_too():
    level = {name: number for number, names in enumerate(LOADER_FLOORS) for name in names}
    for name in level:
        assert (SOURCE / "loader" / name).is_dir() or (SOURCE / "loader" / f"{name}.py").is_file(), name
    wrong = set()
    for path in (SOURCE / "loader").rglob("*.py"):
        here = path.relative_to(SOURCE / "loader").parts[0].removesuffix(".py")
        for module in _imports(path):
            parts = module.split(".")
            there = parts[2] if parts[:2] == ["sophon", "loader"] and len(parts) > 2 else here
            # What users hold in hand may use each other; a test below looks for circles.
            if there != here and level.get(there, len(level)) >= level.get(here, len(level) + 1):
                wrong.add(f"{path.relative_to(SOURCE)} → {module}")
    assert not wrong


def test_the_machine_knows_no_threads_sockets_or_clocks():
    """It decides, and is told what happened and when: so that a simulation can drive it in virtual time."""
    barred = {"threading", "socket", "select", "time", "datetime", "asyncio", "multiprocessing", "concurrent", "queue"}
    barred |= {"os", "subprocess", "signal", "pyarrow", "torch"}
    for path in (SOURCE / "loader" / "machine").rglob("*.py"):
        for module in _imports(path):
            assert module.split(".")[0] not in barred, f"{path.name} imports {module}"
            if module.split(".")[0] == "sophon":
                assert module == "sophon.errors" or module.startswith("sophon.loader.machine."), (
                    f"{path.name}: {module}"
                )


def test_only_the_server_uses_its_isolation():
    for path in _files():
        if path.relative_to(SOURCE).parts[0] != "server":
            assert not any(module.startswith("sophon.server.isolation") for module in _imports(path)), path


def _modules() -> dict[str, Path]:
    return {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in _files()}


def _without_types(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that are there for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _without_types(child)


def _graph(late: bool) -> dict[str, set[str]]:
    """Return which modules each module imports; `late` counts imports inside functions, too."""
    paths = _modules()
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        edges = set()
        tree = _tree(path)
        for node in _without_types(tree) if late else tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                # `from package import module` needs the module; `from package import name` what the package collects.
                edges |= {m for i in inner for m in (i, f"{i}.__init__") if m in paths} or {
                    node.module,
                    f"{node.module}.__init__",
                }
        graph[name] = edges & set(paths)
    return graph


def _assert_no_cycle(graph: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_there_is_no_import_cycle_between_modules():
    _assert_no_cycle(_graph(late=False))  # imports inside functions are late on purpose


def test_there_is_no_import_cycle_between_rooms():
    """In each folder, its files and its sub-rooms, each of them as a whole, use each other in one direction only."""
    graph, paths = _graph(late=True), _modules()
    folders = {path.parent for path in paths.values()}
    for folder in folders:
        prefix = ".".join(folder.relative_to(SOURCE.parent).parts) + "."
        rooms: dict[str, set[str]] = {}
        for name, others in graph.items():
            for other in others:
                if name.startswith(prefix) and other.startswith(prefix):
                    here, there = (each.removeprefix(prefix).split(".")[0] for each in (name, other))
                    if here not in (there, "__init__"):  # a package's own file only says what is in it
                        rooms.setdefault(prefix + here, set()).add(prefix + there)
        _assert_no_cycle(rooms)


def test_no_folder_holds_more_modules_than_one_can_look_over():
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in _files()}}
    assert not {str(folder.relative_to(SOURCE)): count for folder, count in counts.items() if count > MOST_MODULES}


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Function]]:
    """Yield all functions and methods, also those inside others, with their names as `Class.method`."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, _Function | ast.ClassDef):
            name = f"{prefix}{node.name}."
        if isinstance(node, _Function):
            yield name[:-1], node
        yield from _functions(node, name)


def _code_lines(function: _Function) -> int:
    """Return how many lines a function has, from its `def` to its end: without docstring and decorators."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_no_function_is_long_without_a_reason():
    wrong = []
    for path in _files():
        lines = path.read_text().splitlines()
        for name, node in _functions(_tree(path)):
            count, where = _code_lines(node), f"{path.relative_to(SOURCE)} {name}"
            excused = any(LONG.search(line) for line in lines[max(0, node.lineno - 2) : node.lineno])
            if count > MOST_LINES and not excused:
                wrong.append(f"{where} has {count} lines: split it, or say why with `# long: REASON` at its def")
            if count <= MOST_LINES and excused:
                wrong.append(f"{where} has {count} lines and needs no `# long:`")
    assert not wrong


def test_no_public_signature_has_many_parameters():
    """What needs more than that takes a frozen dataclass, whose fields have names, defaults and a docstring each."""
    wrong = []
    for path in _files():
        for name, node in _functions(_tree(path)):
            if any(part.startswith("_") and part != "__init__" for part in name.split(".")):
                continue
            each = node.args
            named = [arg.arg for arg in (*each.posonlyargs, *each.args, *each.kwonlyargs)]
            count = len([arg for arg in named if arg not in ("self", "cls")]) + bool(each.vararg) + bool(each.kwarg)
            where = f"{path.relative_to(SOURCE)} {name}"
            if count > MOST_PARAMETERS and where not in MANY_PARAMETERS:
                wrong.append(f"{where} has {count}")
    assert not wrong


def test_the_front_door_shows_these_names_and_no_others():
    assert sorted(sophon.__all__) == sorted(dir(sophon))
    for name in sophon.__all__:
        assert getattr(sophon, name) is not None
    assert not hasattr(sophon, "no_such_name")


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_is_light():
    loaded = set(
        _run("import sys; before = set(sys.modules); import sophon; print(*set(sys.modules) - before)").split()
    )
    assert not loaded & {"torch", "torchvision", "pyarrow", "PIL", "numpy"}
    assert len(loaded) < 100  # modules, as many as a twentieth of a second takes


def test_pipelines_and_codecs_work_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import io, sophon\nfrom PIL import Image\nfrom sophon import ops\n"
        "out = io.BytesIO(); Image.new('RGB', (40, 30)).save(out, 'JPEG')\n"
        "p = sophon.Pipeline([ops.Decode(), ops.RandomResizedCrop(8), ops.ToTensor()])\n"
        "for cut in sophon.legal_cuts(p):\n"
        "    key = sophon.Key(0, 0, 0)\n"
        "    x = sophon.finish_payload(p, sophon.make_payload(p, out.getvalue(), key, cut), key, cut)\n"
        "print(x.shape)"
    )
    assert _run(code) == "(3, 8, 8)"


ROOT = SOURCE.parents[1]
PAGES = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")]
_TEST_PATH = re.compile(r"(?<![\w/])tests/[\w./*-]*[\w/*]")
_TEST_NAME = re.compile(r"\btest_\w+\.py")


def _sections() -> dict[str, str]:
    """Return what ARCHITECTURE.md says of each folder, by its path from the source; "" for the ground."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Rooms\n")[1].split("\n## ")[0]
    parts = re.split(r"\n### (.+)\n", rooms)
    return {
        title.rstrip("/") if title.endswith("/") else "": text
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_architecture_names_every_folder_and_every_module():
    sections, table = _sections(), (ROOT / "ARCHITECTURE.md").read_text().split("\n### ")[0]
    folders = {path.parent for path in _files()} | {SOURCE}
    names = {"" if folder == SOURCE else folder.relative_to(SOURCE).as_posix(): folder for folder in folders}
    assert set(sections) == set(names)
    assert [name for name in names if f"`{name}/`" not in table and name] == []
    missing, gone = [], []
    for name, folder in names.items():
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        told = set(re.findall(r"`(\w+)`", sections[name]))
        missing += [f"{name}/{module}" for module in sorted(modules - told)]
        first = re.findall(r"^- `(\w+)`", sections[name], re.MULTILINE)
        gone += [f"{name}/{module}" for module in first if module not in modules]
    assert not missing, "ARCHITECTURE.md, section of their folder: say in half a sentence what these own"
    assert not gone, "ARCHITECTURE.md names modules that are not there"


def test_every_test_that_is_named_exists():
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    wrong = []
    for path in [*PAGES, *sorted((ROOT / "docs").glob("*.md")), *_files()]:
        text = path.read_text()
        found = [named for named in _TEST_PATH.findall(text) if not list(ROOT.glob(named.rstrip("/")))]
        found += [named for named in _TEST_NAME.findall(text) if named not in names]
        wrong += [f"{path.relative_to(ROOT)}: {named}" for named in found]
    assert not wrong
