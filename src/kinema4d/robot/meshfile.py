"""Geometry files to meshes, and nothing but geometry files.

A robot description is untrusted text that names files. Only regular files with a geometry suffix are
opened; what they refer to (materials, textures, buffers) must have a known suffix and lie in the folder
of the mesh or beside it, one level up.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import trimesh
from trimesh.resolvers import Resolver

from kinema4d.geometry.mesh import Mesh, weld

SUFFIXES = (".dae", ".stl", ".obj", ".glb", ".gltf", ".ply")
"""Geometry formats that can be loaded."""
COMPANIONS = (".mtl", ".png", ".jpg", ".jpeg", ".bmp", ".tga", ".tif", ".tiff", ".bin", ".webp")
"""What a geometry file may refer to."""
GREY = (180, 180, 185)
"""Colour of surfaces that come without one."""
MAX_BYTES = 512 * 2**20
"""Refuse larger files: nobody's link, and a cheap way to fill the memory."""


class _Companions(Resolver):
    """Lets a mesh read its own materials and textures, and nothing else on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def get(self, key: str) -> bytes:
        name = key.strip()
        path = (self.folder / name).resolve()
        if path.suffix.lower() not in COMPANIONS or not path.is_relative_to(self.folder.parent) or not path.is_file():
            raise FileNotFoundError(f"{name!r} is not a material, texture or buffer near {self.folder}")
        if path.stat().st_size > MAX_BYTES:
            raise FileNotFoundError(f"{name!r} is larger than {MAX_BYTES >> 20} MB")
        return path.read_bytes()

    def write(self, name: str, data: object) -> None:
        raise PermissionError("meshes are read only")

    def keys(self) -> list[str]:
        return []

    def namespaced(self, namespace: str) -> _Companions:
        return self


def load_mesh_file(path: Path, *, scale: np.ndarray, color: tuple[int, int, int] | None) -> list[Mesh]:
    """Read a geometry file. ``color`` overrides the file's own colours when given (URDF ``<material>``)."""
    resolved = path.resolve()
    if resolved.suffix.lower() not in SUFFIXES or path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} is not a geometry file; supported are {', '.join(SUFFIXES)}")
    if not resolved.is_file():
        raise ValueError(f"mesh file {path} does not exist")
    if resolved.stat().st_size > MAX_BYTES:
        raise ValueError(f"mesh file {path} is larger than {MAX_BYTES >> 20} MB")
    data = resolved.read_bytes()
    pieces = _parse(data, resolved)
    if not pieces and resolved.suffix.lower() == ".dae":
        # The parser drops whole geometries over one broken texture reference: better grey than gone.
        pieces = _parse(_without_materials(data, path), resolved)
    meshes = []
    for piece in pieces:
        try:
            meshes.append(_convert(piece, scale, color))
        except ValueError as error:
            raise ValueError(f"mesh file {path}: {error}") from None
    if not meshes:
        raise ValueError(f"mesh file {path} holds no triangles")
    return meshes


def _parse(data: bytes, path: Path) -> list[trimesh.Trimesh]:
    try:
        scene = trimesh.load_scene(
            io.BytesIO(data), file_type=path.suffix[1:].lower(), resolver=_Companions(path.parent), process=False
        )
        pieces = scene.dump()
    except Exception as error:  # the parsers raise anything from KeyError to struct.error on bad bytes
        raise ValueError(f"cannot read mesh file {path}: {type(error).__name__}: {error}") from error
    pieces = pieces if isinstance(pieces, list) else [pieces]
    return [p for p in pieces if isinstance(p, trimesh.Trimesh) and len(p.faces)]


def _without_materials(data: bytes, path: Path) -> bytes:
    """A Collada file with its geometry and transforms only."""
    try:
        root = ET.fromstring(data)
    except ET.ParseError as error:
        raise ValueError(f"cannot read mesh file {path}: {error}") from None
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in (
                "library_effects",
                "library_materials",
                "library_images",
                "bind_material",
            ):
                parent.remove(child)
    return ET.tostring(root)


def _convert(piece: trimesh.Trimesh, scale: np.ndarray, color: tuple[int, int, int] | None) -> Mesh:
    faces = np.asarray(piece.faces, np.int32)
    vertices = np.asarray(piece.vertices, np.float64) * scale
    uvs, texture, colors = None, None, np.tile(np.array(color or GREY, np.uint8), (len(faces), 1))
    visual: Any = piece.visual
    if color is None and visual is not None:
        if visual.kind == "texture":
            image = _image(visual.material)
            if image is not None and visual.uv is not None and len(visual.uv) == len(vertices):
                texture, uvs = image, np.asarray(visual.uv, np.float32)[faces]
            elif image is not None:  # a texture without coordinates: its mean colour is the best guess
                colors[:] = image.reshape(-1, 3).mean(axis=0).astype(np.uint8)
            else:
                main = np.asarray(visual.material.main_color, np.float64).reshape(-1)[:3]
                colors[:] = np.clip(main, 0, 255).astype(np.uint8)
        elif visual.defined:
            colors = np.ascontiguousarray(np.asarray(visual.face_colors, np.uint8)[:, :3])
    keep, same = weld(vertices)  # colours and uvs live on faces, so seams need no doubled vertices
    return Mesh(vertices=vertices[keep], faces=same[faces].astype(np.int32), colors=colors, uvs=uvs, texture=texture)


def _image(material: object) -> np.ndarray | None:
    image = getattr(material, "baseColorTexture", None) or getattr(material, "image", None)
    return None if image is None else np.ascontiguousarray(np.asarray(image.convert("RGB"), np.uint8))


def load_texture(path: Path) -> np.ndarray:
    """Read an image that a URDF ``<texture>`` names."""
    from PIL import Image, UnidentifiedImageError

    resolved = path.resolve()
    if resolved.suffix.lower() not in COMPANIONS or not resolved.is_file():
        raise ValueError(f"texture {path} does not exist or is not an image")
    try:
        with Image.open(resolved) as image:
            return np.ascontiguousarray(np.asarray(image.convert("RGB"), np.uint8))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"cannot read texture {path}: {error}") from None


def primitive(kind: str, size: tuple[float, ...], color: tuple[int, int, int] | None) -> Mesh:
    """A box (x, y, z), cylinder (radius, length), sphere (radius) or capsule (radius, length) as triangles."""
    if kind == "box":
        m = trimesh.creation.box(extents=size)
    elif kind == "cylinder":
        m = trimesh.creation.cylinder(radius=size[0], height=size[1], sections=48)
    elif kind == "sphere":
        m = trimesh.creation.icosphere(radius=size[0], subdivisions=3)
    elif kind == "capsule":
        m = trimesh.creation.capsule(radius=size[0], height=size[1], count=(24, 24))
        m.apply_translation([0, 0, -m.bounds.mean(axis=0)[2]])
    else:
        raise ValueError(f"unknown primitive {kind!r}; known are box, cylinder, sphere, capsule")
    faces = np.asarray(m.faces, np.int32)
    return Mesh(
        vertices=np.asarray(m.vertices, np.float64),
        faces=faces,
        colors=np.tile(np.array(color or GREY, np.uint8), (len(faces), 1)),
    )
