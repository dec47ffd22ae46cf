"""URDF files to robots. Written by hand because the loaders at hand (yourdfpy, urchin) are slow, follow
any path a file names, and raise anything on bad input."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.se3 import apply, euler_to_matrix, transform
from kinema4d.robot.meshfile import load_mesh_file, load_texture, primitive
from kinema4d.robot.model import FIXED, PRISMATIC, REVOLUTE, Gripper, Joint, Robot, build_robot

_KINDS = {"fixed": FIXED, "revolute": REVOLUTE, "continuous": REVOLUTE, "prismatic": PRISMATIC}


def load_urdf(
    path: str | Path,
    *,
    packages: Sequence[str | Path] = (),
    source: str | None = None,
    name: str | None = None,
    tool_link: str | None = None,
    gripper: Gripper | None = None,
    visuals: bool = True,
) -> Robot:
    """Read a URDF. ``packages`` are folders in which ``package://name/...`` is looked up, before the folders
    above the file."""
    path = Path(path)
    try:
        root = ET.fromstring(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read URDF {path}: {error}") from None
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"URDF {path} is not well-formed XML: {error}") from None
    if root.tag != "robot":
        raise ValueError(f"URDF {path} must have <robot> as its root element, got <{root.tag}>")
    try:
        links = [_need(link, "name") for link in root.findall("link")]
        if not links:
            raise ValueError("it has no <link>")
        joints = [_joint(j) for j in root.findall("joint")]
        shapes = _Shapes(path.parent, packages, root) if visuals else None
        seen = (
            [(ln, m) for el, ln in zip(root.findall("link"), links, strict=True) for m in shapes.of(el)]
            if shapes
            else []
        )
        return build_robot(
            name=name or root.get("name") or path.stem,
            source=source or str(path),
            links=links,
            joints=joints,
            visuals=seen,
            tool_link=tool_link,
            gripper=gripper,
        )
    except ValueError as error:
        raise ValueError(f"URDF {path}: {error}") from None


def _joint(el: ET.Element) -> Joint:
    name, kind = _need(el, "name"), _need(el, "type")
    if kind not in _KINDS:
        raise ValueError(f"joint {name!r} has type {kind!r}; supported are {', '.join(_KINDS)}")
    axis_el = el.find("axis")
    axis = np.array([1.0, 0, 0]) if axis_el is None else _numbers(axis_el, "xyz", 3, f"axis of joint {name!r}")
    length = np.linalg.norm(axis)
    if _KINDS[kind] != FIXED and length < 1e-9:
        raise ValueError(f"joint {name!r} has a zero axis")
    joint = Joint(
        name=name,
        parent=_need(_child(el, "parent", name), "link"),
        child=_need(_child(el, "child", name), "link"),
        kind=_KINDS[kind],
        T_parent_joint=_origin(el, f"joint {name!r}"),
        axis=axis / length if length > 1e-9 else axis,
    )
    limit, mimic = el.find("limit"), el.find("mimic")
    if kind in ("revolute", "prismatic"):
        if limit is None:
            raise ValueError(f"joint {name!r} is {kind} but has no <limit>")
        lower = _number(limit, "lower", 0.0, f"limit of joint {name!r}", infinite=True)
        upper = _number(limit, "upper", 0.0, f"limit of joint {name!r}", infinite=True)
        if lower > upper:
            raise ValueError(f"joint {name!r} has lower limit {lower:g} above upper limit {upper:g}")
        joint = replace(joint, lower=lower, upper=upper)
    if limit is not None and limit.get("velocity"):
        velocity = _number(limit, "velocity", np.inf, f"limit of joint {name!r}")
        joint = replace(joint, velocity=velocity if velocity > 0 else np.inf)
    if mimic is not None:
        joint = replace(
            joint,
            mimic=_need(mimic, "joint"),
            multiplier=_number(mimic, "multiplier", 1.0, f"mimic of joint {name!r}"),
            offset=_number(mimic, "offset", 0.0, f"mimic of joint {name!r}"),
        )
    return joint


class _Shapes:
    """Visual geometry of links: resolves paths and materials of one file, reading each mesh once."""

    def __init__(self, folder: Path, packages: Sequence[str | Path], root: ET.Element) -> None:
        self.folder = folder
        self.packages = [Path(p) for p in packages]
        self.materials = {m.get("name"): m for m in root.findall("material")}
        self.cache: dict[tuple, list[Mesh]] = {}

    def of(self, link: ET.Element) -> list[Mesh]:
        out = []
        for visual in link.findall("visual"):
            where = f"visual of link {link.get('name')!r}"
            T = _origin(visual, where)
            geometry = visual.find("geometry")
            if geometry is None or len(geometry) == 0:
                raise ValueError(f"{where} has no <geometry>")
            color, texture = self._material(visual.find("material"), where)
            for mesh in self._geometry(geometry[0], color, where):
                if texture is not None and mesh.uvs is not None:
                    mesh = replace(mesh, texture=texture)
                elif texture is not None:  # no coordinates to hang it on: its mean colour is the best guess
                    mean = texture.reshape(-1, 3).mean(axis=0).astype(np.uint8)
                    mesh = replace(mesh, colors=np.tile(mean, (len(mesh.faces), 1)))
                out.append(replace(mesh, vertices=apply(T, mesh.vertices)))
        return out

    def _geometry(self, el: ET.Element, color: tuple[int, int, int] | None, where: str) -> list[Mesh]:
        if el.tag == "mesh":
            scale = _numbers(el, "scale", 3, f"scale of {where}") if el.get("scale") else np.ones(3)
            if not np.isfinite(scale).all() or (scale == 0).any():
                raise ValueError(f"{where} has scale {scale.tolist()}; it must be finite and not zero")
            name = _need(el, "filename")
            key = (name, tuple(scale), color)
            if key not in self.cache:
                self.cache[key] = load_mesh_file(self.resolve(name), scale=scale, color=color)
            return self.cache[key]
        if el.tag == "box":
            return [primitive("box", _sizes(_numbers(el, "size", 3, where), where), color)]
        if el.tag in ("cylinder", "capsule"):
            size = [_number(el, "radius", None, where), _number(el, "length", None, where)]
            return [primitive(el.tag, _sizes(size, where), color)]
        if el.tag == "sphere":
            return [primitive("sphere", _sizes([_number(el, "radius", None, where)], where), color)]
        raise ValueError(f"{where} has unknown geometry <{el.tag}>; known are mesh, box, cylinder, sphere, capsule")

    def _material(self, el: ET.Element | None, where: str) -> tuple[tuple[int, int, int] | None, np.ndarray | None]:
        if el is None:
            return None, None
        if el.find("color") is None and el.find("texture") is None:
            el = self.materials.get(el.get("name"), el)
        color, texture = el.find("color"), el.find("texture")
        rgb = None
        if color is not None:
            rgba = _numbers(color, "rgba", 4, f"material of {where}")
            r, g, b = (round(255 * float(x)) for x in np.clip(rgba[:3], 0, 1))
            rgb = (r, g, b)
        if texture is not None and texture.get("filename"):
            return rgb, load_texture(self.resolve(_need(texture, "filename")))
        return rgb, None

    def resolve(self, name: str) -> Path:
        """A mesh path as the file writes it: relative, absolute, ``file://`` or ``package://``."""
        url = urlparse(name)
        if url.scheme == "package":
            rest = Path(unquote(url.netloc), unquote(url.path).lstrip("/"))
            inside = Path(*rest.parts[1:])
            roots = [*self.packages, *self.folder.resolve().parents, self.folder.resolve()]
            for candidate in (c for r in roots for c in (r / rest, r / inside)):
                if candidate.is_file():
                    return candidate
            raise ValueError(
                f"cannot find {name}; looked in {', '.join(str(p) for p in self.packages) or 'no package folder'} and "
                f"above {self.folder}. Name the folder that holds package {rest.parts[0]!r} (--packages FOLDER)"
            )
        if url.scheme == "file":
            return Path(unquote(url.netloc + url.path))
        if url.scheme and len(url.scheme) > 1:
            raise ValueError(
                f"mesh {name!r} has scheme {url.scheme!r}; supported are relative paths, package:// and file://"
            )
        path = self.folder / name
        if not path.is_file():
            raise ValueError(f"mesh file {path} does not exist (written as {name!r})")
        return path


def _origin(el: ET.Element, where: str) -> np.ndarray:
    origin = el.find("origin")
    if origin is None:
        return np.eye(4)
    xyz = _numbers(origin, "xyz", 3, f"origin of {where}") if origin.get("xyz") else np.zeros(3)
    rpy = _numbers(origin, "rpy", 3, f"origin of {where}") if origin.get("rpy") else np.zeros(3)
    return transform(xyz, euler_to_matrix(rpy))


def _need(el: ET.Element, attribute: str) -> str:
    value = el.get(attribute)
    if not value:
        raise ValueError(f"<{el.tag}> lacks the attribute {attribute!r}")
    return value


def _child(el: ET.Element, tag: str, joint: str) -> ET.Element:
    child = el.find(tag)
    if child is None:
        raise ValueError(f"joint {joint!r} has no <{tag}>")
    return child


def _numbers(el: ET.Element, attribute: str, n: int, where: str) -> np.ndarray:
    text = el.get(attribute) or ""
    try:
        values = np.array([float(x) for x in text.split()])
    except ValueError:
        raise ValueError(f"{where}: {attribute}={text!r} is not a list of numbers") from None
    if len(values) != n or not np.isfinite(values).all():
        raise ValueError(f"{where}: {attribute} must be {n} finite numbers, got {text!r}")
    return values


def _number(el: ET.Element, attribute: str, default: float | None, where: str, *, infinite: bool = False) -> float:
    text = el.get(attribute)
    if text is None:
        if default is None:
            raise ValueError(f"{where}: <{el.tag}> lacks the attribute {attribute!r}")
        return default
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{where}: {attribute}={text!r} is not a number") from None
    if np.isnan(value) or (np.isinf(value) and not infinite):
        raise ValueError(f"{where}: {attribute} must be finite, got {text!r}")
    return value


def _sizes(values: Sequence[float] | np.ndarray, where: str) -> tuple[float, ...]:
    if not all(v > 0 for v in values):
        raise ValueError(f"{where}: sizes must be positive, got {[float(v) for v in values]}")
    return tuple(float(v) for v in values)
