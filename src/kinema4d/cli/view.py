"""``kinema4d view``: show a clip in the browser."""

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
    """Show a clip in the browser: 4D point cloud, robot, camera, image, with a time slider.

    Args:
        clip: Folder that another command wrote: a clip, or a data set.
        episode: Which episode of a data set, by id or number.
        port: Port of the web page.
        host: Address to listen on; 0.0.0.0 for other machines.
        html: Write a self-contained page to this file instead of serving.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
    """
    from kinema4d.robot.zoo import load_robot
    from kinema4d.viewer.html import export_html
    from kinema4d.viewer.view import view as show

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
