"""``kinema4d view``: show a clip, or the motion of an object, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from kinema4d.cli.console import warn
from kinema4d.cli.export import load_thing


def view(
    clip: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    episode: str | None = None,
    port: int = 8080,
    host: str = "127.0.0.1",
    html: Path | None = None,
    assets: Path | None = None,
) -> None:
    """Show a clip in the browser: 4D point cloud, robot, camera, image, with a time slider; or the motion of an object: moving mesh,
    forces, energy, and a slider for each of its coordinates.

    Args:
        clip: Folder that another command wrote: a clip, a data set, or the motion of an object.
        episode: Which episode of a data set, by id or number.
        port: Port of the web page.
        host: Address to listen on; 0.0.0.0 for other machines.
        html: Write a self-contained page to this file instead of serving.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
    """
    from kinema4d.geometry.motion_folder import is_motion_folder
    from kinema4d.robot.zoo import load_robot
    from kinema4d.viewer.html import export_html
    from kinema4d.viewer.view import view as show

    if is_motion_folder(clip):
        if episode is not None:
            raise ValueError(f"--episode chooses from a data set; {clip} is the motion of an object")
        _view_object(clip, port=port, host=host, html=html)
        return
    thing = load_thing(clip, episode)
    robots = []
    for arm in getattr(thing, "arms", ()):
        try:
            robots.append(load_robot(arm.robot, assets=assets))
        except ValueError as error:
            warn(f"showing points without the robot's mesh: {error}")
            robots = []
            break
    if html is not None:
        export_html(thing, html, robots=robots)
        print(f"wrote {html}: open it in a browser")
        return
    show(thing, robots=robots, port=port, host=host)


def _view_object(folder: Path, *, port: int, host: str, html: Path | None) -> None:
    from kinema4d.geometry.motion_folder import load_motion
    from kinema4d.viewer.object_html import export_motion_html
    from kinema4d.viewer.object_view import view_motion

    motion = load_motion(folder)
    if html is not None:
        export_motion_html(motion, html)
        print(f"wrote {html}: open it in a browser")
        return
    view_motion(motion, port=port, host=host)
