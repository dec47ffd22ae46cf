"""Shared set-up: array annotations are checked while tests run, and the data folder is found once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[1]
os.environ.setdefault("KINEMA4D_CACHE", str(ROOT / ".pytest_cache" / "meshes"))  # not in the user's own cache
DATA = Path(os.environ.get("KINEMA4D_DATA", ROOT.parent / "shared" / "data"))


def _checked_modules() -> list[str]:
    """Every module but the Numba kernels, which cannot be wrapped."""
    files = (ROOT / "src" / "kinema4d").rglob("*.py")
    names = [".".join(f.relative_to(ROOT / "src").with_suffix("").parts) for f in files]
    return [n for n in names if not n.endswith(("_kernels", "__init__"))]


settings.register_profile("patient", deadline=None)  # a busy machine is no failure
settings.load_profile("patient")
install_import_hook(_checked_modules(), "typechecker.check")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real robots and footage; tests that need it skip where it is absent."""
    if not (DATA / "MANIFEST.md").is_file():
        pytest.skip(f"no real data at {DATA}; set KINEMA4D_DATA to the folder with MANIFEST.md")
    return DATA
