"""One HTML file that plays a recording by double click, without Python and without a network."""

from __future__ import annotations

import contextlib
import html
import io
from collections.abc import Sequence
from pathlib import Path

from kinema4d.files import whole_file
from kinema4d.robot.model import Robot
from kinema4d.types import Control
from kinema4d.viewer.recording import Recording, Viewable, recording
from kinema4d.viewer.scene import SceneOptions, build_scene
from kinema4d.viewer.view import start_server


def export_html(
    thing: Viewable,
    path: str | Path,
    *,
    control: Control | None = None,
    robots: Sequence[Robot] = (),
    point_budget: int = 15_000,
    max_triangles: int = 40_000,
) -> Path:
    """Write a self-contained page of a control signal, clip, episode or rollout, and return its path.

    ``robots`` and ``control`` are as in :func:`kinema4d.viewer.view.view`. About 9 bytes per point and frame.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the page must be named .html, got {path}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: " + ("it is a folder" if path.is_dir() else f"no folder {path.parent}"))
    rec = recording(thing, control)
    options = SceneOptions(point_budget=point_budget, max_triangles=max_triangles, precision="float16")
    page = _with_caption(_record(rec, robots, options), rec)
    with whole_file(path, overwrite=True) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _record(rec: Recording, robots: Sequence[Robot], options: SceneOptions) -> str:
    """The animation as viser's own page. Recording needs a server, so one runs, unseen, while frames are made."""
    with contextlib.redirect_stdout(io.StringIO()):  # viser greets and says goodbye
        server = start_server("127.0.0.1", 0)
        try:
            scene = build_scene(server, rec, robots, options)
            serializer = server.get_scene_serializer()
            for frame in range(1, len(rec)):
                serializer.insert_sleep(1 / rec.fps)
                scene.show(frame)
            if len(rec) > 1:  # without a duration the page takes it for a still
                serializer.insert_sleep(1 / rec.fps)
            return serializer.as_html()
        finally:
            server.stop()


def _with_caption(page: str, rec: Recording) -> str:
    title = html.escape(rec.title)
    facts = f"{len(rec)} frames at {rec.fps:g} fps, {rec.camera.width}x{rec.camera.height} pixels"
    caption = (
        '<div style="position:fixed;top:12px;left:12px;z-index:9;padding:8px 12px;border-radius:6px;max-width:22em;'
        "font:13px/1.5 system-ui,sans-serif;color:#333;background:rgba(255,255,255,.88);"
        'box-shadow:0 1px 6px rgba(0,0,0,.15);pointer-events:none">'
        f"<b>Kinema4D &middot; {title}</b><br>{facts}<br>"
        "Drag to turn, scroll to zoom, right-drag to move, space to pause. The tree button below hides parts.</div>"
    )
    start = page.index("<body")
    end = page.index(">", start) + 1
    head = page.index("</head>")
    return f"{page[:head]}<script>document.title='Kinema4D'</script>{page[head:end]}{caption}{page[end:]}"
