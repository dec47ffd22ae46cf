"""Every robot of the zoo that is installed, in its home configuration, as one picture; and what is missing.

python examples/03_zoo.py --out out/zoo.png
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tyro
from PIL import Image, ImageDraw

import kinema4d as k4d
from kinema4d.geometry.se3 import apply
from kinema4d.robot.zoo import ZOO

PAPER = np.array([238, 240, 244], np.uint8)


def main(out: Path = Path("out/zoo.png"), size: int = 300, columns: int = 5) -> None:
    tiles = []
    for name in ZOO:
        try:
            robot = k4d.load_robot(name)
        except ValueError as error:
            print(f"{name}: {error}")
            continue
        tiles.append(portrait(robot, size))
        print(f"{name}: {robot.dof} joints, {sum(len(v.mesh.faces) for v in robot.visuals)} triangles")
    blank = np.broadcast_to(PAPER, (size, size, 3))
    tiles += [blank] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[i : i + columns], axis=1) for i in range(0, len(tiles), columns)]
    out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(rows)).save(out)
    print(f"wrote {out}")


def portrait(robot: k4d.Robot, size: int) -> np.ndarray:
    """The robot at home, seen from the front right, filling the picture; drawn at twice the size, for smooth edges."""
    Ts = k4d.forward_kinematics(robot, robot.home[None])[0]
    surface = np.concatenate([apply(Ts[v.link], v.mesh.vertices) for v in robot.visuals])
    low, high = surface.min(axis=0), surface.max(axis=0)
    middle, reach = (low + high) / 2, float(np.linalg.norm(high - low))
    n = 2 * size
    camera = k4d.Camera(
        K=np.array([[2.2 * n, 0, (n - 1) / 2], [0, 2.2 * n, (n - 1) / 2], [0, 0, 1.0]]),
        T_world_camera=k4d.look_at(middle + reach * np.array([1.6, -1.35, 0.8]), middle),
        height=n,
        width=n,
    )
    still = k4d.Actions(space="joint_position", values=robot.home[None], fps=1.0, joint_names=robot.joint_names)
    control = k4d.control(robot, still, camera)
    picture = np.where(control.mask[0][..., None], control.clip.rgb[0], PAPER)
    image = Image.fromarray(picture).resize((size, size), Image.Resampling.BOX)
    ImageDraw.Draw(image).text((12, 10), robot.name, fill=(40, 44, 52), font_size=18)
    return np.asarray(image)


if __name__ == "__main__":
    tyro.cli(main)
