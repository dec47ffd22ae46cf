"""A live page of a moving object: its mesh over time, the forces, the ledgers, and what each of its coordinates does."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from kinema4d.geometry.deforming import ObjectMotion, posed
from kinema4d.geometry.deforming_look import (
    RED,
    STONE,
    arrows,
    box,
    creased,
    creases,
    face_colors,
    floor,
    obstacle_mesh,
    placed,
    size,
    towards_eye,
)
from kinema4d.geometry.ledger import ledger_svg
from kinema4d.viewer.view import start_server

MOST = 30.0
"""Pictures per second while time runs; frames between are skipped."""
SUM = "several coordinates are moved: their displacements are added, which is an approximation"
"""What a page says where it is one."""


def view_motion(motion: ObjectMotion, *, host: str = "127.0.0.1", port: int = 8080, block: bool = True) -> ObjectViewer:
    """Show the motion of an object in the browser. ``port=0`` takes any free port. With ``block`` the call returns after Ctrl-C, else at
    once."""
    viewer = ObjectViewer(motion, host=host, port=port)
    if block:
        print(f"Object motion at {viewer.url} - Ctrl-C ends")
        try:
            viewer.wait()
        except KeyboardInterrupt:
            viewer.stop()
    return viewer


def said_of(motion: ObjectMotion, q: Sequence[float], frame: int) -> str:
    """What is on screen, in words: a frame of the motion, or coordinates by hand."""
    moved = [i for i, (a, b) in enumerate(zip(q, motion.rest_q, strict=True)) if abs(a - b) > 1e-9]
    if not moved:
        return f"the motion at {motion.seconds[frame]:.3f} s"
    if len(moved) == 1:
        return f"coordinate {moved[0] + 1} at {q[moved[0]]:.3g}, the others at rest"
    return SUM


def facts(motion: ObjectMotion) -> str:
    """What the motion is, as HTML: other people's words are escaped."""
    _, v = motion.vertices.shape[:2]
    lines = [f"<b>Object motion</b><br>{len(motion)} frames of {1000 * motion.step:g} ms, {v} vertices, {motion.q.shape[1]} coordinates"]  # fmt: skip
    if motion.stopped is not None:
        lines.append(f'<span style="color:#c02020"><b>Stopped:</b> {html.escape(motion.stopped)}</span>')
    lines += [f"Input: {html.escape(flag)}" for flag in motion.flags]
    about = ", ".join(f"{key} {value}" for key, value in motion.about.items())
    return "<br>".join([*lines, *([f'<span style="opacity:.7">{html.escape(about)}</span>'] if about else [])])


class ObjectViewer:
    """A running page. It has state: which frame is shown, whether time runs, and which coordinates are moved by hand."""

    def __init__(self, motion: ObjectMotion, *, host: str, port: int) -> None:
        self.motion = motion
        self.server = start_server(host, port)
        self.host, self.port = host, int(self.server.get_port())
        self.frame = 0
        """The frame on screen."""
        self.shown: Float32[np.ndarray, "v 3"] = motion.vertices[0]
        """The vertices on screen."""
        self._lock = threading.RLock()
        self._running, self._stopped = threading.Event(), threading.Event()
        try:
            with self.server.atomic():
                self._build_scene()
                self._build_gui()
        except BaseException:
            self.server.stop()
            raise
        self._player = threading.Thread(target=self._play, name="kinema4d-object-view", daemon=True)
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
        """Go to a frame of the motion; coordinates moved by hand go back to rest."""
        if not 0 <= frame < len(self.motion):
            raise ValueError(f"frame must be in 0..{len(self.motion) - 1}, got {frame}")
        self._draw(frame, by_hand=False)
        self._time.value = frame  # after: what it then calls finds nothing to do

    def pose(self, q: Float[np.ndarray, " k"]) -> None:
        """Show coordinates by hand, where the object is in the current frame."""
        if len(q) != len(self._sliders):
            raise ValueError(f"the object has {len(self._sliders)} coordinates, got {len(q)}")
        with self._lock:
            for slider, value in zip(self._sliders, q, strict=True):
                slider.value = float(value)
        self._draw(self.frame, by_hand=True)

    def play(self) -> None:
        """Let time run."""
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
            self._running.set()  # wakes the player, which then ends
            self._player.join(timeout=5)
            self.server.stop()

    def __enter__(self) -> ObjectViewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _build_scene(self) -> None:
        scene, motion, ground = self.server.scene, self.motion, floor(self.motion)
        scene.set_up_direction("+z")
        scene.configure_default_lights(cast_shadow=False)  # shadow maps cost several passes on a laptop without a GPU
        scene.add_grid(
            f"/floor ({ground.cell:g} m squares)", width=2 * ground.half, height=2 * ground.half, cell_size=ground.cell,
            section_size=5 * ground.cell, cell_color=(205, 207, 212), section_color=(165, 168, 176), position=ground.middle,
            shadow_opacity=0.0,
        )  # fmt: skip
        source, faces = creased(motion)
        colors = face_colors(motion)
        self._parts = []
        for number, color in enumerate(np.unique(colors, axis=0)):
            mine, at = np.unique(faces[(colors == color).all(axis=1)], return_inverse=True)
            node = scene.add_mesh_simple(
                f"/object/{number}", self.shown[source[mine]], at.reshape(-1, 3).astype(np.uint32), color=tuple(int(c) for c in color),
                side="double", cast_shadow=False,
            )  # fmt: skip
            self._parts.append((node, source[mine]))
        if (stands := obstacle_mesh(motion)) is not None:
            source, faces = creases(stands)
            scene.add_mesh_simple(
                "/obstacles", stands.vertices[source], faces.astype(np.uint32), color=STONE, side="double", cast_shadow=False
            )  # fmt: skip
        thick = 0.012 * size(motion)
        self._arrows = scene.add_arrows(
            "/forces", self._arrow_points(0), RED, shaft_radius=thick, head_radius=2.5 * thick, head_length=6 * thick
        )
        low, high = box(motion)
        middle, far = (low + high) / 2, 1.45 * float(np.linalg.norm(high - low))
        start = self.server.initial_camera
        start.position, start.look_at = middle + far * towards_eye(motion), middle
        start.up, start.fov = (0.0, 0.0, 1.0), np.radians(40)

    def _build_gui(self) -> None:
        gui, motion = self.server.gui, self.motion
        gui.configure_theme(show_logo=False, show_share_button=False, control_width="large", brand_color=(40, 90, 200))
        gui.set_panel_label("Kinema4D")
        # Not markdown: viser would run {...} in other people's words as a program.
        gui.add_html(_box(facts(motion)))
        self._button = gui.add_button("Play", icon="player-play")
        self._time = gui.add_slider("Frame", min=0, max=max(len(motion) - 1, 1), step=1, initial_value=0)
        self._time.disabled = self._button.disabled = len(motion) == 1
        self._speed = gui.add_number("Speed", 1.0, min=0.01, max=10.0, step=0.05, hint="1 is as fast as it was")
        self._plot = gui.add_html(_box(ledger_svg(motion, mark=0.0)))
        self._sliders = []
        with gui.add_folder("Coordinates"):
            for i, (low, high) in enumerate(motion.reach):
                first = float(np.clip(motion.rest_q[i], low, high))
                self._sliders.append(
                    gui.add_slider(f"{i + 1}", min=float(low), max=float(high), step=float(high - low) / 200, initial_value=first)
                )  # fmt: skip
            back = gui.add_button("Back to the motion", icon="arrow-back-up", visible=bool(self._sliders))
            self._said = gui.add_html(_box(html.escape(self._sentence())))
        gui.add_markdown("Drag to turn, scroll to zoom, right-drag to move. Red arrows are forces.")

        @self._button.on_click
        def _(_: Any) -> None:
            self.pause() if self.playing else self.play()

        @self._time.on_update
        def _(_: Any) -> None:
            if int(self._time.value) != self.frame:  # else it was set to what is shown
                self._draw(min(int(self._time.value), len(motion) - 1), by_hand=False)

        @back.on_click
        def _(_: Any) -> None:
            self._draw(self.frame, by_hand=False)

        for slider in self._sliders:

            @slider.on_update
            def _(event: Any) -> None:
                if event.client is not None:  # moved by a person, not put back to rest by time
                    self.pause()
                    self._draw(self.frame, by_hand=True)

    def _draw(self, frame: int, *, by_hand: bool) -> None:
        """Bring the page to a frame, or to the coordinates of the sliders."""
        with self._lock, self.server.atomic():
            if not by_hand:
                for slider, value, (low, high) in zip(self._sliders, self.motion.rest_q, self.motion.reach, strict=True):  # fmt: skip
                    if abs(slider.value - np.clip(value, low, high)) > 1e-9:
                        slider.value = float(np.clip(value, low, high))
            own = posed(self.motion, np.array([s.value for s in self._sliders])) if by_hand else None
            self.shown = self.motion.vertices[frame] if own is None else placed(self.motion, own, frame)
            for node, source in self._parts:
                node.vertices = self.shown[source]
            self._arrows.points = _NOWHERE if by_hand else self._arrow_points(frame)
            if frame != self.frame:
                self._plot.content = _box(ledger_svg(self.motion, mark=float(self.motion.seconds[frame])))
            self.frame = frame
            self._said.content = _box(html.escape(self._sentence()))

    def _arrow_points(self, frame: int) -> np.ndarray:
        ends = arrows(self.motion, frame).astype(np.float32)
        return ends if len(ends) else _NOWHERE

    def _sentence(self) -> str:
        q = (
            "In the motion now: " + ", ".join(f"{v:.3g}" for v in self.motion.q[self.frame]) + ". "
            if self._sliders
            else ""
        )
        return f"{q}Shown: {said_of(self.motion, [s.value for s in self._sliders], self.frame)}."

    def _play(self) -> None:
        """Time runs as fast as it did; frames for which a page has no time are skipped."""
        while not self._stopped.is_set():
            if not self._running.wait(0.5) or self._stopped.is_set():
                continue
            pause = max(1 / MOST, self.motion.step / self._speed.value)
            begin, first = time.monotonic(), self.frame
            if self._stopped.wait(pause):
                return
            if self.playing and self.frame == first:
                ahead = max(1, round((time.monotonic() - begin) * self._speed.value / self.motion.step))
                after = first + ahead
                self.show(
                    after if after < len(self.motion) else 0 if first == len(self.motion) - 1 else len(self.motion) - 1
                )


_NOWHERE = np.array([[[0, 0, -1e4], [0, 0, -1e4 + 1]]], np.float32)
"""No arrow: viser cannot draw zero of them, so one waits out of sight."""


def _box(content: str) -> str:
    return f'<div style="padding:0 0.6em 0.4em;font-size:0.875em;line-height:1.5">{content}</div>'
