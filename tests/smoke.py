"""Run by `make wheel-test` with a bare install: no optional package, no data, no checkout on the path."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import kinema4d as k4d
from kinema4d.geometry.camera import camera_to_dict

folder = Path(sys.argv[1]).resolve()
assert "site-packages" in str(Path(k4d.__file__)), k4d.__file__
for absent in ("viser", "mujoco", "cv2", "pyarrow", "torch"):
    try:
        __import__(absent)
    except ImportError:
        continue
    raise SystemExit(f"{absent} is installed: this is not a bare environment")

robot = k4d.load_robot("k4arm")
T = k4d.forward_kinematics(robot, robot.home[None])[0, robot.link_index("tool")]
delta = np.tile([0, 0.02, -0.01, 0, 0, 0.05], (8, 1))
np.savez(folder / "actions.npz", ee_delta=delta, gripper=np.linspace(0, 1, 8), fps=10.0)
camera = k4d.Camera(
    K=np.array([[150.0, 0, 95.5], [0, 150, 63.5], [0, 0, 1]]),
    T_world_camera=k4d.look_at(np.array([1.2, -0.7, 0.8]), T[:3, 3]),
    height=128,
    width=192,
)
(folder / "camera.json").write_text(json.dumps(camera_to_dict(camera)))
command = Path(sys.executable).parent / "kinema4d"
words = ["control", "--robot", "k4arm", "--actions", folder / "actions.npz", "--camera", folder / "camera.json"]
subprocess.run([command, *words, "--out", folder / "clip"], check=True)
control = k4d.load(folder / "clip")
assert isinstance(control, k4d.Control)
assert len(control) == 9
assert control.arms[0].converged.all()
assert control.mask.mean() > 0.02

view = subprocess.run([command, "view", folder / "clip"], capture_output=True, text=True)
assert view.returncode == 2, view
assert "kinema4d[view]" in view.stderr, view.stderr
panda = subprocess.run(
    [command, *words[:1], "--robot", "panda", *words[3:], "--out", folder / "x"], capture_output=True, text=True
)
assert panda.returncode == 2, panda
assert "kinema4d[robots]" in panda.stderr, panda.stderr
subprocess.run([command, "doctor"], check=True, stdout=subprocess.DEVNULL)
print("bare install: ok")
