"""Geometry files to meshes, and nothing but geometry files.

A robot description is untrusted text that names files. Only regular files with a geometry suffix are
opened; what they refer to (materials, textures, buffers) must have a known suffix and lie in the folder
of the mesh or beside it, one level up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kinema4d.geometry.mesh import Mesh
from kinema4d.robot import meshcache

SUFFIXES = (".dae", ".stl", ".obj", ".glb", ".gltf", ".ply")
"""Geometry formats that can be loaded."""
COMPANIONS = (".mtl", ".png", ".jpg", ".jpeg", ".bmp", ".tga", ".tif", ".tiff", ".bin", ".webp")
"""What a geometry file may refer to."""
GREY = (180, 180, 185)
"""Colour of surfaces that come without one."""
MAX_BYTES = 512 * 2**20
"""Refuse larger files: nobody's link, and a cheap way to fill the memory."""


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
    meshes = meshcache.get(data, resolved.suffix)
    if meshes is None:
        from kinema4d.robot.meshparse import parse  # takes half a second to import, and is not needed on a hit

        meshes = parse(data, resolved)
        meshcache.put(data, resolved.suffix, meshes)
    if not meshes:
        raise ValueError(f"mesh file {path} holds no triangles")
    return [_adapted(m, scale, color) for m in meshes]


def _adapted(mesh: Mesh, scale: np.ndarray, color: tuple[int, int, int] | None) -> Mesh:
    if color is not None:
        paint = np.tile(np.array(color, np.uint8), (len(mesh.faces), 1))
        return Mesh(vertices=mesh.vertices * scale, faces=mesh.faces, colors=paint, uvs=mesh.uvs)
    return replace(mesh, vertices=mesh.vertices * scale)


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
    import trimesh

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
