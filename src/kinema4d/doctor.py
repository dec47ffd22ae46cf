"""What is installed, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass

CORE = ("numpy", "scipy", "numba", "trimesh", "pycollada", "pillow", "av", "jaxtyping", "rich", "tyro")
"""Packages that every install has."""
EXTRAS = {
    "mujoco": ("mjcf", "robots from MJCF files"),
    "pyarrow": ("parquet", "actions from parquet files"),
    "viser": ("view", "kinema4d view"),
    "opencv-python-headless": ("calibrate", "kinema4d calibrate"),
    "rerun-sdk": ("rerun", "export to .rrd"),
}
"""Packages that unlock a feature, and the extra that installs them."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    group: str
    """system, core, feature or robot."""
    name: str
    """What was looked for."""
    ok: bool
    """Whether it is there."""
    detail: str
    """Version or place; or what it is for."""
    remedy: str = ""
    """The command that gets it, where it is missing."""


def examine() -> list[Finding]:
    """Look at everything."""
    return [*_system(), *_core(), *_features(), *_robots()]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _system() -> list[Finding]:
    from kinema4d.geometry.raster import default_threads

    python = sys.version_info >= (3, 11)
    return [
        Finding(
            group="system",
            name="python",
            ok=python,
            detail=platform.python_version(),
            remedy="install Python 3.11 or newer",
        ),
        Finding(group="system", name="platform", ok=True, detail=f"{platform.system()} {platform.machine()}"),
        Finding(
            group="system",
            name="threads",
            ok=True,
            detail=f"{default_threads()} for rasterising (NUMBA_NUM_THREADS)",
        ),
    ]


def _core() -> list[Finding]:
    out = []
    for package in CORE:
        version = _version(package)
        out.append(
            Finding(
                group="core",
                name=package,
                ok=version is not None,
                detail=version or "missing",
                remedy=f"pip install {package}",
            )
        )
    from av.codec import codecs_available

    for codec, use in (("libx264", "rgb.mp4"), ("ffv1", "depth and labels")):
        ok = codec in codecs_available
        out.append(
            Finding(group="core", name=f"codec {codec}", ok=ok, detail=use, remedy="pip install --force-reinstall av")
        )
    return out


def _features() -> list[Finding]:
    out = []
    for package, (extra, use) in EXTRAS.items():
        version = _version(package)
        detail = f"{version}, for {use}" if version else f"for {use}"
        out.append(
            Finding(
                group="feature",
                name=package,
                ok=version is not None,
                detail=detail,
                remedy=f"pip install 'kinema4d[{extra}]'",
            )
        )
    browser = next((b for b in ("chromium", "chromium-browser", "google-chrome", "firefox") if shutil.which(b)), None)
    detail = browser or "to open the viewer on this machine"
    out.append(
        Finding(
            group="feature",
            name="browser",
            ok=browser is not None,
            detail=detail,
            remedy="apt-get install chromium, or open the printed address from another machine",
        )
    )
    return out


def _robots() -> list[Finding]:
    from kinema4d.robot import meshcache
    from kinema4d.robot.zoo import ASSETS_VARIABLE, ZOO, find

    folders = os.environ.get(ASSETS_VARIABLE)
    out = [
        Finding(group="robot", name=ASSETS_VARIABLE, ok=True, detail=folders or "not set (optional folder of robots)")
    ]
    out.append(
        Finding(
            group="robot",
            name=meshcache.VARIABLE,
            ok=True,
            detail=f"parsed meshes in {meshcache.folder() or 'nowhere (off)'}",
        )
    )
    for name, entry in ZOO.items():
        try:
            path, _ = find(name)
        except ValueError:
            out.append(Finding(group="robot", name=name, ok=False, detail=entry.about, remedy=entry.get))
        else:
            out.append(Finding(group="robot", name=name, ok=True, detail=f"{entry.about}; {path.name}"))
    return out
