"""Robots by name. One entry is one robot; meshes come from a folder the user names, from ``KINEMA4D_ASSETS``,
or from a pip wheel."""

from __future__ import annotations

import importlib.metadata
import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinema4d.robot.attach import attach
from kinema4d.robot.mjcf import load_mjcf
from kinema4d.robot.model import Gripper, Robot
from kinema4d.robot.urdf import load_urdf

ASSETS_VARIABLE = "KINEMA4D_ASSETS"
"""Environment variable: folders of robots, separated like PATH."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a robot's files are and what its file does not say."""

    about: str
    """One line for people."""
    files: tuple[str, ...] = ()
    """Paths tried in each asset folder."""
    wheel: str = ""
    """Pip package that carries the robot, or its meshes."""
    wheel_file: str = ""
    """The robot's file inside that package; or, with ``own``, the folder of its ``package://`` meshes."""
    own: str = ""
    """Description that we ship, where the package has only meshes or no mesh is needed."""
    get: str = ""
    """What to type to get the files."""
    tool_links: tuple[str, ...] = ()
    """The link that end-effector actions speak about: the first that the file has."""
    home: Mapping[str, float] = field(default_factory=dict)
    """A comfortable configuration; joints that are not named or not there stay at 0 or the nearest limit."""
    grippers: tuple[Gripper, ...] = ()
    """How the gripper number moves the fingers: the first whose joints the file has."""


_PANDA_HOME = dict(zip((f"panda_joint{i}" for i in range(1, 8)), (0, -0.5, 0, -2.2, 0, 1.8, 0.785), strict=True))
_WHEEL = "cmeel.prefix/share/example-robot-data/robots/"
_EXTRA = "pip install 'kinema4d[robots]'"


def _clone(repository: str, folder: str, name: str) -> str:
    return (
        f"git clone {repository}, then copy its {folder} to a folder as {name} and set {ASSETS_VARIABLE} to that folder"
    )


ZOO: dict[str, Entry] = {
    "k4arm": Entry(
        about="our own 6-joint arm with two fingers, from primitives; always there",
        own="k4arm.urdf",
        tool_links=("tool",),
        home={"joint2": -0.4, "joint3": 1.6, "joint5": 1.2, "finger_joint": 0.045},
        grippers=(Gripper(joints=("finger_joint",), open=(0.045,), closed=(0.0,)),),
    ),
    "k4hand": Entry(
        about="our own two-finger hand for a bare flange: ur5+k4hand",
        own="k4hand.urdf",
        tool_links=("tool",),
        home={"finger_joint": 0.045},
        grippers=(Gripper(joints=("finger_joint",), open=(0.045,), closed=(0.0,)),),
    ),
    "k4grip": Entry(
        about="our own gripper like a Robotiq 2F-85 for a bare flange: xarm7+k4grip",
        own="k4grip.urdf",
        tool_links=("tool",),
        grippers=(Gripper(joints=("knuckle_joint",), open=(0.0,), closed=(0.82,)),),
    ),
    "panda": Entry(
        about="Franka Panda with the Franka hand",
        files=("panda_hand/panda_v2.urdf", "panda_description/urdf/panda.urdf"),
        wheel="example-robot-data",
        wheel_file=_WHEEL + "panda_description/urdf/panda.urdf",
        get=_EXTRA,
        tool_links=("panda_hand_tcp",),
        home={**_PANDA_HOME, "panda_finger_joint1": 0.04},
        grippers=(Gripper(joints=("panda_finger_joint1",), open=(0.04,), closed=(0.0,)),),
    ),
    "panda_robotiq": Entry(
        about="Franka Panda with Robotiq 2F-85 and camera mount, as in DROID",
        files=(
            "panda_robotiq_2f85/franka_panda_robotiq_2f85.urdf",
            "franka_description/franka_panda_robotiq_2f85.urdf",
        ),
        get=_clone("https://github.com/NVlabs/PointWorld", "assets/franka_description", "panda_robotiq_2f85"),
        tool_links=("panda_link8",),
        home=_PANDA_HOME,
        grippers=(Gripper(joints=("finger_joint",), open=(0.0,), closed=(0.725,)),),
    ),
    "wx250s": Entry(
        about="WidowX 250 S, as in Bridge",
        files=("widowx_250s/wx250s.urdf", "widowx_description/wx250s.urdf"),
        wheel="rtb-data",
        wheel_file="rtbdata/xacro",
        own="wx250s.urdf",
        get=_EXTRA,
        tool_links=("ee_gripper_link",),
        home={"shoulder": -0.6, "elbow": 0.5, "wrist_angle": 1.2, "left_finger": 0.037},
        grippers=(Gripper(joints=("left_finger",), open=(0.037,), closed=(0.015,)),),
    ),
    "google_robot": Entry(
        about="Google mobile manipulator, as in RT-1",
        files=(
            "google_robot/google_robot_meta_sim_fix_wheel_fix_fingertip.urdf",
            "googlerobot_description/google_robot_meta_sim_fix_wheel_fix_fingertip.urdf",
        ),
        get=_clone(
            "https://github.com/simpler-env/ManiSkill2_real2sim",
            "mani_skill2_real2sim/assets/descriptions/googlerobot_description",
            "google_robot",
        ),
        tool_links=("link_gripper_tcp",),
        home={
            "joint_torso": -0.264,
            "joint_shoulder": 0.083,
            "joint_bicep": 0.502,
            "joint_elbow": 1.156,
            "joint_forearm": 0.0286,
            "joint_wrist": 1.593,
            "joint_gripper": -1.08,
        },
        grippers=(Gripper(joints=("joint_finger_right", "joint_finger_left"), open=(0.0, 0.0), closed=(1.3, 1.3)),),
    ),
    "xarm7": Entry(
        about="UFACTORY xArm7, bare flange",
        files=("xarm_description/urdf/xarm7.urdf", "xarm7/xarm7.urdf"),
        wheel="example-robot-data",
        wheel_file=_WHEEL + "xarm_description/urdf/xarm7.urdf",
        get=_EXTRA,
        tool_links=("link_eef",),
        home={"joint2": -0.4, "joint4": 0.9, "joint6": 1.3},
    ),
    "ur5": Entry(
        about="Universal Robots UR5, bare flange",
        files=("ur_description/urdf/ur5_robot.urdf", "ur5/ur5.urdf"),
        wheel="example-robot-data",
        wheel_file=_WHEEL + "ur_description/urdf/ur5_robot.urdf",
        get=_EXTRA,
        tool_links=("tool0",),
        home={"shoulder_lift_joint": -1.4, "elbow_joint": 1.6, "wrist_1_joint": -1.77, "wrist_2_joint": -1.57},
    ),
    "so101": Entry(
        about="SO-101 of LeRobot",
        files=("so_arm_description/urdf/so101.urdf", "so101/so101.urdf"),
        wheel="example-robot-data",
        wheel_file=_WHEEL + "so_arm_description/urdf/so101.urdf",
        get=_EXTRA,
        tool_links=("gripper_frame_link",),
        home={"shoulder_lift": -0.8, "elbow_flex": 0.8, "wrist_flex": 1.2, "gripper": 1.2},
        grippers=(Gripper(joints=("gripper",), open=(1.74533,), closed=(-0.174533,)),),
    ),
    "yam": Entry(
        about="I2RT YAM arm, the robot of the paper's real-world tests",
        files=("yam/yam.urdf",),
        wheel="mjlab",
        wheel_file="mjlab/asset_zoo/robots/i2rt_yam/xmls/yam.xml",
        get="pip install --no-deps mjlab==1.6.0 (its own dependencies clash with ours and are not needed)",
        tool_links=("gripper", "link_6"),
        home={"joint2": 1.0, "joint3": 1.2},
        grippers=(
            Gripper(joints=("joint7", "joint8"), open=(-0.04695, -0.04695), closed=(0.0, 0.0)),
            Gripper(joints=("right_finger",), open=(-0.037524,), closed=(0.00205,)),
        ),
    ),
}
"""Every robot that has a name. To add one, add an entry (docs/extending.md)."""


def load_robot(
    robot: str | Path,
    *,
    assets: str | Path | None = None,
    packages: Sequence[str | Path] = (),
    tool_link: str | None = None,
    gripper: Gripper | None = None,
    visuals: bool = True,
) -> Robot:
    """Load a robot by zoo name or from a URDF or MJCF file. ``assets`` is a folder of robots that is searched
    first; ``packages`` are folders for ``package://`` paths; ``tool_link`` and ``gripper`` override the entry.
    ``arm+hand`` puts one robot on the tool link of another: ``ur5+k4grip``, ``my_arm.urdf+k4hand``."""
    name = str(robot)
    if "+" in name and not Path(name).is_file():
        arm, _, hand = name.rpartition("+")
        carrier = load_robot(arm, assets=assets, packages=packages, tool_link=tool_link, visuals=visuals)
        return attach(carrier, load_robot(hand, assets=assets, packages=packages, gripper=gripper, visuals=visuals))
    if name not in ZOO:
        path = Path(robot)
        if path.suffix.lower() not in (".urdf", ".xml", ".mjcf"):
            hint = "; expand it first: xacro file.urdf.xacro > file.urdf" if path.suffix == ".xacro" else ""
            raise ValueError(
                f"unknown robot {name!r}: give a .urdf or MJCF .xml file{hint}, or one of {', '.join(ZOO)}"
            )
        if not path.is_file():
            raise ValueError(f"robot file {path} does not exist (zoo names are {', '.join(ZOO)})")
        if is_mjcf(path):
            return load_mjcf(path, tool_link=tool_link, gripper=gripper, visuals=visuals)
        return load_urdf(path, packages=packages, tool_link=tool_link, gripper=gripper, visuals=visuals)
    entry = ZOO[name]
    path, meshes = find(name, assets=assets)
    if is_mjcf(path):
        plain = load_mjcf(path, source=name, name=name, visuals=visuals)
    else:
        plain = load_urdf(path, packages=[*packages, *meshes], source=name, name=name, visuals=visuals)
    return _complete(plain, entry, tool_link, gripper)


def _complete(robot: Robot, entry: Entry, tool_link: str | None, gripper: Gripper | None) -> Robot:
    """Add what the entry knows. Files of one robot name some links and joints differently: the first fit counts."""
    home = robot.home.copy()
    for joint, value in entry.home.items():
        if joint in robot.joint_names:
            home[robot.joint_names.index(joint)] = value
    tool = tool_link or next((link for link in entry.tool_links if link in robot.link_names), robot.tool_link)
    robot.link_index(tool)
    if gripper:
        robot.joint_indices(gripper.joints)
    fitting = (g for g in entry.grippers if set(g.joints) <= set(robot.joint_names))
    return replace(robot, home=home, tool_link=tool, gripper=gripper or next(fitting, None))


def find(name: str, *, assets: str | Path | None = None) -> tuple[Path, list[Path]]:
    """The file of a zoo robot and the folders for its ``package://`` meshes, or a ``ValueError`` that says how
    to get them."""
    entry = ZOO[name]
    folders = [Path(assets)] if assets else []
    folders += [Path(p) for p in os.environ.get(ASSETS_VARIABLE, "").split(os.pathsep) if p]
    for folder in folders:
        for file in entry.files:
            if (folder / file).is_file():
                return folder / file, []
    own = Path(__file__).parent / "assets" / entry.own
    if entry.own and not entry.wheel:
        return own, []
    if entry.wheel:
        try:
            path = Path(str(importlib.metadata.distribution(entry.wheel).locate_file(entry.wheel_file)))
        except importlib.metadata.PackageNotFoundError:
            path = None
        if path is not None and path.exists():
            return (own, [path]) if entry.own else (path, [])
    looked = ", ".join(str(f) for f in folders) or f"no folder ({ASSETS_VARIABLE} is not set)"
    raise ValueError(f"the files of robot {name!r} are not here (looked in {looked}). To get them: {entry.get}")


def is_mjcf(path: Path) -> bool:
    """Whether an XML file is MJCF rather than URDF, by its root element."""
    try:
        for _, element in ET.iterparse(path, events=("start",)):
            return element.tag in ("mujoco", "mujocoinclude")
    except (ET.ParseError, OSError, ValueError, LookupError):
        return False
    return False
