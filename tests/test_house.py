"""The house: which room may use which, what the front door shows, and how light it is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sophon

SOURCE = Path(sophon.__file__).parent
# From the ground up; a room may use those on the floors below it. Rooms on one floor do not use each other.
FLOORS = [
    {"errors", "units", "artifact", "version"},
    {"pipeline", "store"},
    {"codec"},
    {"profile"},
    {"plan"},
    {"server", "loader"},
    {"report", "bench"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "sophon" and len(parts) > 1 else None


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            if node.module == "sophon":
                found |= {f"sophon.{alias.name}" for alias in node.names}
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


def test_nothing_is_unpickled_and_nothing_is_evaluated():
    for path in _files():
        tree = ast.parse(path.read_text())
        assert not _imports(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
        calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec", "compile"}, path


def test_only_the_cli_prints():
    for path in _files():
        if path.relative_to(SOURCE).parts[0] != "cli":
            tree = ast.parse(path.read_text())
            assert not any(isinstance(n, ast.Name) and n.id == "print" for n in ast.walk(tree)), path


def test_there_is_no_import_cycle_between_modules():
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in _files()}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        edges = set()
        for node in ast.parse(path.read_text()).body:  # imports inside functions are late on purpose
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                # `from package import module` needs the module; `from package import name` what the package collects.
                edges |= {m for i in inner for m in (i, f"{i}.__init__") if m in paths} or {
                    node.module,
                    f"{node.module}.__init__",
                }
        graph[name] = edges & set(paths)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_front_door_shows_these_names_and_no_others():
    assert sorted(sophon.__all__) == sorted(dir(sophon))
    for name in sophon.__all__:
        assert getattr(sophon, name) is not None
    assert not hasattr(sophon, "no_such_name")


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_is_light():
    # CPU seconds and the best of three: the machine may be busy.
    code = "import time; t = time.process_time(); import sophon; print(time.process_time() - t)"
    assert min(float(_run(code)) for _ in range(3)) < 0.3
    loaded = _run(
        "import sys, sophon; print(*[m for m in ('torch', 'torchvision', 'pyarrow', 'PIL') if m in sys.modules])"
    )
    assert loaded == ""


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


@pytest.mark.parametrize("room", ["loader", "server"])
def test_architecture_names_every_file_of_the_large_rooms(room):
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text()
    names = {path.stem for path in (SOURCE / room).glob("*.py")} - {"__init__"}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
