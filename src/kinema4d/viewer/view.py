"""A live page of a recording: the coloured 4D points in the world, the robot, the camera and its images."""

from __future__ import annotations

import errno
import html
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from kinema4d.robot.model import Robot
from kinema4d.types import Control
from kinema4d.viewer.recording import Recording, Viewable, depth_image, depth_range, recording
from kinema4d.viewer.scene import MESH_OPACITY, Scene, SceneOptions, Server, build_scene

_HELP = "Drag to turn, scroll to zoom, right-drag to move. Axes: x red, y green, z blue (up); grid squares are 10 cm."

PANEL_WIDTH = 260
"""Of the images, in CSS pixels."""


def view(
    thing: Viewable,
    *,
    control: Control | None = None,
    robots: Sequence[Robot] = (),
    host: str = "127.0.0.1",
    port: int = 8080,
    point_budget: int = 60_000,
    block: bool = True,
) -> Viewer:
    """Show a control signal, clip, episode or rollout in the browser.

    ``robots`` (one per recorded arm) adds their meshes; ``control`` lends its robot mask and motion to a clip or
    rollout. ``port=0`` takes any free port. With ``block`` the call returns after Ctrl-C, else at once.
    """
    rec = recording(thing, control)
    options = SceneOptions(point_budget=point_budget)
    viewer = Viewer(rec, robots, options, host=host, port=port)
    if block:
        print(f"{rec.title} at {viewer.url} - Ctrl-C ends")
        try:
            viewer.wait()
        except KeyboardInterrupt:
            viewer.stop()
    return viewer


class Viewer:
    """A running page. It is the one place with state: which frame is shown, and whether time runs."""

    def __init__(self, rec: Recording, robots: Sequence[Robot], options: SceneOptions, *, host: str, port: int) -> None:
        self.server = start_server(host, port)
        self.host, self.port = host, int(self.server.get_port())
        self.frame = 0
        """The frame on screen."""
        self._rec = rec
        self._lock = threading.Lock()
        self._running, self._stopped = threading.Event(), threading.Event()
        try:
            with self.server.atomic():
                self.scene = build_scene(self.server, rec, robots, options)
                self._build_gui(self.server, self.scene)
        except BaseException:
            self.server.stop()
            raise
        self._player = threading.Thread(target=self._play, name="kinema4d-view", daemon=True)
        self._player.start()

    @property
    def url(self) -> str:
        """Where to point a browser."""
        return f"http://{'localhost' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"

    @property
    def playing(self) -> bool:
        """Whether time runs."""
        return self._running.is_set() and not self._stopped.is_set()

    def show(self, frame: int) -> None:
        """Go to a frame."""
        if not 0 <= frame < len(self._rec):
            raise ValueError(f"frame must be in 0..{len(self._rec) - 1}, got {frame}")
        self._slider.value = frame
        self._refresh()

    def play(self) -> None:
        """Let time run."""
        if not self._loop.value and self.frame == len(self._rec) - 1:
            self.show(0)
        self._running.set()
        self._button.label, self._button.icon = "Pause", "player-pause"

    def pause(self) -> None:
        """Hold the current frame."""
        self._running.clear()
        self._button.label, self._button.icon = "Play", "player-play"

    def wait(self) -> None:
        """Return when the page is stopped."""
        while not self._stopped.wait(0.5):  # in slices: an endless wait would swallow Ctrl-C on Windows
            pass

    def stop(self) -> None:
        """Close the page and free the port."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._player.join(timeout=5)  # it must not move a scene that is gone
            self.server.stop()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _build_gui(self, server: Server, scene: Scene) -> None:
        gui, rec = server.gui, self._rec
        gui.configure_theme(show_logo=False, show_share_button=False, brand_color=(40, 90, 200))
        gui.set_panel_label("Kinema4D")
        size = f"{rec.camera.width}x{rec.camera.height}"
        # Not markdown: viser would run {...} in an episode's text as a program.
        facts = f"<b>{html.escape(rec.title)}</b><br>{len(rec)} frames at {rec.fps:g} fps, {size} pixels"
        gui.add_html(f'<div style="padding:0 0.6em 0.4em;font-size:0.875em;line-height:1.5">{facts}</div>')
        self._button = gui.add_button("Play", icon="player-play")
        self._slider = gui.add_slider("Frame", min=0, max=max(len(rec) - 1, 1), step=1, initial_value=0)
        self._slider.disabled = self._button.disabled = len(rec) == 1
        self._fps = gui.add_number("Frames/s", float(rec.fps), min=min(0.1, rec.fps), max=max(120.0, rec.fps), step=0.5)
        self._loop = gui.add_checkbox("Loop", True)
        has_robot = any(bool(rec.robot_mask(t).any()) for t in range(len(rec)))
        has_environment = any(bool((rec.pointmap.valid[t] & ~rec.robot_mask(t)).any()) for t in range(len(rec)))
        with gui.add_folder("Show"):
            _toggle(gui, "Robot points", scene.robot_points, has_robot, "the recording does not say which are robot")
            _toggle(gui, "Environment", scene.environment_points, has_environment, "only the robot was recorded")
            _toggle(gui, "Robot mesh", scene.mesh, bool(scene.links), "no robot model was given")
            _toggle(gui, "Camera", scene.camera, True, "")
            _toggle(gui, "Grid", scene.grid, True, "")
            opacity = gui.add_slider("Mesh opacity", min=0.05, max=1.0, step=0.05, initial_value=MESH_OPACITY,
                                     visible=bool(scene.links))  # fmt: skip
            mm = 2e3 * scene.point_size  # viser's size is a radius
            points = gui.add_slider("Point size (mm)", min=round(mm / 5, 2), max=round(mm * 4, 2), step=0.01,
                                    initial_value=round(mm, 2))  # fmt: skip
        near, far = self._depth_range = depth_range(rec)
        panel = gui.add_panel()
        with panel.add_tab("Recording camera", "camera"):
            self._image = gui.add_image(_readable(rec.image(0)), label="Colour")
            self._depth = gui.add_image(
                _readable(depth_image(rec, 0, near, far)), label=f"Depth: red {near:.2f} m to blue {far:.2f} m"
            )
        panel.float(x=15, y=15, width=PANEL_WIDTH)
        gui.add_markdown(_HELP)

        @opacity.on_update
        def _(_: Any) -> None:
            with server.atomic():
                for node in scene.surfaces:
                    node.opacity = opacity.value if opacity.value < 1 else None  # None: not sorted as glass

        @points.on_update
        def _(_: Any) -> None:
            scene.robot_points.point_size = scene.environment_points.point_size = points.value / 2e3

        @self._slider.on_update
        def _(_: Any) -> None:
            self._refresh()

        @self._button.on_click
        def _(_: Any) -> None:
            self.pause() if self.playing else self.play()

    def _refresh(self) -> None:
        """Bring the scene to the slider's frame. A fast drag queues many calls: late ones find nothing to do."""
        with self._lock:
            frame = min(int(self._slider.value), len(self._rec) - 1)
            if frame == self.frame:
                return
            with self.server.atomic():
                self.scene.show(frame)
                self._image.image = _readable(self._rec.image(frame))
                self._depth.image = _readable(depth_image(self._rec, frame, *self._depth_range))
            self.frame = frame

    def _play(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            if not self._running.wait(0.5):
                continue
            due = max(due + 1 / self._fps.value, time.monotonic())  # a slow frame delays, and is not caught up
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            last = self.frame == len(self._rec) - 1
            if not self.playing:
                continue
            if last and not self._loop.value:
                self.pause()
            else:
                self._slider.value = 0 if last else self.frame + 1  # calls _refresh


def start_server(host: str, port: int) -> Server:
    """A viser server on exactly this port (0 takes a free one)."""
    try:
        import viser
    except ImportError:
        raise ValueError("the viewer needs viser, which is not installed: pip install 'kinema4d[view]'") from None
    # viser tries the next 1000 ports when one is taken, and hangs on a host it cannot bind: find out first.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError:
            raise ValueError(f"port must be in 0..65535, got {port}") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"port {port} on {host} is in use; choose another (--port {port + 1}), or any free one (--port 0)"
                ) from None
            raise ValueError(f"cannot open a page at {host}:{port}: {error.strerror or error}") from None
    return viser.ViserServer(host=host, port=port, verbose=False)


def _readable(image: np.ndarray) -> np.ndarray:
    """Whole pixels, repeated until a small image fills its panel."""
    n = max(1, PANEL_WIDTH // image.shape[1])
    return image.repeat(n, axis=0).repeat(n, axis=1) if n > 1 else image


def _toggle(gui: Any, label: str, node: Any, available: bool, why_not: str) -> None:
    box = gui.add_checkbox(label, available, disabled=not available, hint=None if available else why_not)

    @box.on_update
    def _(_: Any) -> None:
        node.visible = box.value
