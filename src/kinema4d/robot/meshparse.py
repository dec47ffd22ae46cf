"""Bytes of a geometry file to meshes, through trimesh. Imported only when a mesh has to be parsed."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import trimesh
from trimesh.resolvers import Resolver

from kinema4d.geometry.mesh import Mesh, weld
from kinema4d.robot.meshfile import COMPANIONS, GREY, MAX_BYTES


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


def parse(data: bytes, path: Path) -> list[Mesh]:
    """The triangles of a file with their colours; ``path`` says its format and where its textures may lie."""
    pieces = _pieces(data, path)
    if not pieces and path.suffix.lower() == ".dae":
        # The parser drops whole geometries over one broken texture reference: better grey than gone.
        pieces = _pieces(_without_materials(data, path), path)
    try:
        return [_convert(piece) for piece in pieces]
    except ValueError as error:
        raise ValueError(f"mesh file {path}: {error}") from None


def _pieces(data: bytes, path: Path) -> list[trimesh.Trimesh]:
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
    looks = ("library_effects", "library_materials", "library_images", "bind_material")
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in looks:
                parent.remove(child)
    return ET.tostring(root)


def _convert(piece: trimesh.Trimesh) -> Mesh:
    faces = np.asarray(piece.faces, np.int32)
    vertices = np.asarray(piece.vertices, np.float64)
    uvs, texture, colors = None, None, np.tile(np.array(GREY, np.uint8), (len(faces), 1))
    visual: Any = piece.visual
    if visual is not None and visual.kind == "texture":
        image = _image(visual.material)
        if visual.uv is not None and len(visual.uv) == len(vertices):
            uvs = np.asarray(visual.uv, np.float32)[faces]
            texture = image
        if image is not None:  # without coordinates a texture is its mean colour
            colors[:] = image.reshape(-1, 3).mean(axis=0).astype(np.uint8)
        else:
            colors[:] = np.clip(np.asarray(visual.material.main_color, np.float64).reshape(-1)[:3], 0, 255).astype(
                np.uint8
            )
    elif visual is not None and visual.defined:
        colors = np.ascontiguousarray(np.asarray(visual.face_colors, np.uint8)[:, :3])
    keep, same = weld(vertices)  # colours and uvs live on faces, so seams need no doubled vertices
    return Mesh(vertices=vertices[keep], faces=same[faces].astype(np.int32), colors=colors, uvs=uvs, texture=texture)


def _image(material: object) -> np.ndarray | None:
    image = getattr(material, "baseColorTexture", None) or getattr(material, "image", None)
    return None if image is None else np.ascontiguousarray(np.asarray(image.convert("RGB"), np.uint8))
