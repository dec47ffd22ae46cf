"""The house rules that a machine can check: import direction, lazy imports, no strays in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kinema4d"

ALLOWED = {
    "types": set(),
    "files": set(),
    "weights_file": set(),
    "geometry": {"types"},
    "robot": {"types", "geometry"},
    "scenes": {"types", "geometry", "robot"},
    "data": {"types", "geometry", "robot", "scenes"},
    "world": {"types", "geometry"},
    "objects": {"types", "geometry"},
    "train": {"types", "geometry", "robot", "scenes", "data", "world", "objects"},
    "simulate": {"types", "geometry", "robot", "world", "objects"},
    "evaluate": {"types", "geometry", "robot", "scenes", "data", "world", "objects", "simulate"},
    "viewer": {"types", "geometry", "robot"},
}
"""Who may import whom (docs/architecture.md). ``cli``, ``doctor`` and ``__init__`` see all."""


def _imports(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= (
                {f"{node.module}.{a.name}" for a in node.names} if node.module == "kinema4d" else {str(node.module)}
            )
    return {n.split(".")[1] for n in names if n.startswith("kinema4d.")}


def test_imports_go_down_only():
    files = [f for f in SOURCE.rglob("*.py") if f.parent != SOURCE or f.stem in ("types", "files", "weights_file")]
    files = [f for f in files if f.parent.name != "cli"]
    assert len(files) > 20
    for file in files:
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        strangers = _imports(file) - ALLOWED[part] - {part, "files", "weights_file"}
        assert not strangers, f"{file.relative_to(ROOT)} imports {strangers}; {part} may import {ALLOWED[part]}"


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_is_cheap():
    loaded = _modules_after("import kinema4d")
    assert not loaded & {"torch", "viser", "mujoco", "numba", "cv2", "pyarrow", "trimesh", "tyro"}


def test_the_core_needs_no_torch_and_no_optional_package():
    code = "import kinema4d as k; k.control, k.save, k.load_robot, k.load_actions, k.view; import kinema4d.cli"
    loaded = _modules_after(code)
    assert {"numba", "av"} <= loaded
    assert not loaded & {"torch", "viser", "mujoco", "cv2", "pyarrow", "rerun"}


def test_public_names_resolve():
    import kinema4d

    for name in kinema4d.__all__:
        assert getattr(kinema4d, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kinema4d.nonsense


def test_every_public_name_is_typed_for_editors():
    text = (SOURCE / "__init__.py").read_text()
    block = text[text.index("if TYPE_CHECKING:") : text.index("def __getattr__")]
    import kinema4d

    for name in kinema4d._PUBLIC:
        assert re.search(rf"import {name} as {name}\b", block), f"{name} is missing under TYPE_CHECKING"


def test_no_absolute_paths_or_hosts_in_files():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pattern = re.compile(r"/(work|root|home)/(?!\.)[a-z]+/|files\.pythonhosted|pypi\.org/simple|registry\.npmjs")
    for name in tracked:
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".txt", ".json", ""}
            and path.is_file()
            and path.name != "test_house.py"
        ):
            assert not pattern.search(path.read_text(errors="ignore")), name
