"""The robot: an immutable tree of links in flat arrays, without state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32

from kinema4d.geometry.mesh import Mesh

FIXED, REVOLUTE, PRISMATIC = 0, 1, 2
"""How a link moves against its parent. A continuous joint is a revolute one without limits."""


@dataclass(frozen=True, kw_only=True)
class Gripper:
    """How one number, 0 = open to 1 = closed, moves the fingers."""

    joints: tuple[str, ...]
    """Actuated finger joints."""
    open: tuple[float, ...]
    """Their positions when fully open, rad or m."""
    closed: tuple[float, ...]
    """Their positions when fully closed, rad or m."""

    def __post_init__(self) -> None:
        if not len(self.joints) == len(self.open) == len(self.closed) > 0:
            raise ValueError(f"a gripper needs an open and a closed position for each finger joint, got {self}")
        if any(a == b for a, b in zip(self.open, self.closed, strict=True)):
            raise ValueError(f"a gripper's open and closed positions must differ, got {self}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Visual:
    """A piece of visible geometry."""

    link: int
    """Index of the link it is fixed to."""
    mesh: Mesh
    """Its surface, in the link's frame."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Robot:
    """A kinematic tree. Row i of each ``[link]`` array belongs to link i; parents come before children."""

    name: str
    """Zoo name, or the name in the file."""
    source: str
    """What :func:`kinema4d.load_robot` was given, so that a saved clip can find the robot again."""
    link_names: tuple[str, ...]
    """All links, root first."""
    joint_names: tuple[str, ...]
    """Actuated joints: the columns of q. Mimic joints follow and are not listed."""
    lower: Float[np.ndarray, " dof"]
    """Lower limits in rad or m; -inf for continuous joints."""
    upper: Float[np.ndarray, " dof"]
    """Upper limits in rad or m; inf for continuous joints."""
    velocity: Float[np.ndarray, " dof"]
    """Velocity limits in rad/s or m/s; inf where the file states none."""
    parent: Int32[np.ndarray, " link"]
    """Index of the parent link; -1 for the root."""
    T_parent_joint: Float[np.ndarray, "link 4 4"]
    """Joint frame in the parent link at q = 0."""
    kind: Int32[np.ndarray, " link"]
    """FIXED, REVOLUTE or PRISMATIC."""
    axis: Float[np.ndarray, "link 3"]
    """Unit joint axis in the joint frame."""
    column: Int32[np.ndarray, " link"]
    """Which column of q moves the link; -1 where fixed."""
    multiplier: Float[np.ndarray, " link"]
    """Joint position = multiplier * q + offset (mimic joints; 1 and 0 otherwise)."""
    offset: Float[np.ndarray, " link"]
    """See ``multiplier``."""
    visuals: tuple[Visual, ...]
    """Everything that can be seen."""
    tool_link: str
    """The link that end-effector actions speak about."""
    home: Float[np.ndarray, " dof"]
    """A comfortable configuration, used where no start is given."""
    gripper: Gripper | None = None
    """How the gripper number moves the fingers, if known."""

    @property
    def dof(self) -> int:
        """Number of actuated joints."""
        return len(self.joint_names)

    def link_index(self, name: str) -> int:
        """Index of a link by name."""
        if name not in self.link_names:
            raise ValueError(f"robot {self.name!r} has no link {name!r}; it has {', '.join(self.link_names)}")
        return self.link_names.index(name)

    def joint_indices(self, names: Sequence[str]) -> np.ndarray:
        """Columns of q by joint name."""
        for name in names:
            if name not in self.joint_names:
                raise ValueError(f"robot {self.name!r} has no actuated joint {name!r}; it has {self.joint_names}")
        return np.array([self.joint_names.index(n) for n in names], np.int64)

    def chain_columns(self, link: str) -> np.ndarray:
        """Columns of q that move ``link``, base first."""
        i, columns = self.link_index(link), []
        while i >= 0:
            if self.column[i] >= 0 and self.column[i] not in columns:
                columns.append(int(self.column[i]))
            i = int(self.parent[i])
        return np.array(columns[::-1], np.int64)

    @property
    def arm_columns(self) -> np.ndarray:
        """Columns of q that move the tool: what joint actions of width ``len(arm_columns)`` drive."""
        return self.chain_columns(self.tool_link)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joint:
    """One joint as a file describes it, before the tree is built."""

    name: str
    """Joint name."""
    parent: str
    """Link it starts from."""
    child: str
    """Link it moves."""
    kind: int
    """FIXED, REVOLUTE or PRISMATIC."""
    T_parent_joint: Float[np.ndarray, "4 4"]
    """Joint frame in the parent link."""
    axis: Float[np.ndarray, "3"]
    """Unit axis in the joint frame."""
    lower: float = -np.inf
    """Lower limit."""
    upper: float = np.inf
    """Upper limit."""
    velocity: float = np.inf
    """Velocity limit."""
    mimic: str | None = None
    """Joint it follows."""
    multiplier: float = 1.0
    """Position = multiplier * followed + offset."""
    offset: float = 0.0
    """See ``multiplier``."""


def build_robot(
    *,
    name: str,
    source: str,
    links: Sequence[str],
    joints: Sequence[Joint],
    visuals: Sequence[tuple[str, Mesh]],
    tool_link: str | None = None,
    gripper: Gripper | None = None,
) -> Robot:
    """Check a description and flatten it into a :class:`Robot`."""
    if len(set(links)) != len(links):
        twice = next(x for x in links if list(links).count(x) > 1)
        raise ValueError(f"robot {name!r} has two links named {twice!r}")
    by_name = {j.name: j for j in joints}
    if len(by_name) != len(joints):
        twice = next(j.name for j in joints if [k.name for k in joints].count(j.name) > 1)
        raise ValueError(f"robot {name!r} has two joints named {twice!r}")
    into: dict[str, Joint] = {}
    for j in joints:
        for link in (j.parent, j.child):
            if link not in links:
                raise ValueError(f"joint {j.name!r} of robot {name!r} refers to link {link!r}, which does not exist")
        if j.child in into:
            raise ValueError(f"link {j.child!r} of robot {name!r} has two parents: {into[j.child].name!r}, {j.name!r}")
        into[j.child] = j
    order = _topological_order(name, links, joints, into)
    column, joint_names = _columns(name, order, into, by_name)
    lead = [by_name[n] for n in joint_names]
    rows = [into.get(link) for link in order]
    index = {link: i for i, link in enumerate(order)}
    lower, upper = np.array([j.lower for j in lead]), np.array([j.upper for j in lead])
    robot = Robot(
        name=name,
        source=source,
        link_names=tuple(order),
        joint_names=tuple(joint_names),
        lower=lower,
        upper=upper,
        velocity=np.array([j.velocity for j in lead]),
        parent=np.array([index[j.parent] if j else -1 for j in rows], np.int32),
        T_parent_joint=np.array([j.T_parent_joint if j else np.eye(4) for j in rows]),
        kind=np.array([j.kind if j else FIXED for j in rows], np.int32),
        axis=np.array([j.axis if j else [0.0, 0.0, 1.0] for j in rows]),
        column=np.array([column[j.name][0] if j else -1 for j in rows], np.int32),
        multiplier=np.array([column[j.name][1] if j else 1.0 for j in rows]),
        offset=np.array([column[j.name][2] if j else 0.0 for j in rows]),
        visuals=tuple(Visual(link=index[link], mesh=mesh) for link, mesh in visuals),
        tool_link=tool_link or _guess_tool(order, into),
        home=np.clip(0.0, lower, upper),
        gripper=gripper,
    )
    robot.link_index(robot.tool_link)
    if gripper:
        robot.joint_indices(gripper.joints)
    return robot


def _topological_order(name: str, links: Sequence[str], joints: Sequence[Joint], into: dict[str, Joint]) -> list[str]:
    roots = [link for link in links if link not in into]
    if not roots:
        raise ValueError(f"robot {name!r} has no root link: its joints form a cycle")
    if len(roots) > 1:
        raise ValueError(
            f"robot {name!r} has {len(roots)} root links ({', '.join(roots[:5])}); join them with fixed joints"
        )
    children: dict[str, list[str]] = {link: [] for link in links}
    for j in joints:
        children[j.parent].append(j.child)
    order, stack = [], [roots[0]]
    while stack:
        link = stack.pop()
        order.append(link)
        stack.extend(reversed(children[link]))
    if len(order) != len(links):
        lost = sorted(set(links) - set(order))
        raise ValueError(f"robot {name!r} has a cycle: links {', '.join(lost[:5])} cannot be reached from {roots[0]!r}")
    return order


def _columns(
    name: str, order: Sequence[str], into: dict[str, Joint], by_name: dict[str, Joint]
) -> tuple[dict[str, tuple[int, float, float]], list[str]]:
    """For each joint its column of q, multiplier and offset, with chains of mimics resolved."""
    moving = [into[link] for link in order if link in into and into[link].kind != FIXED]
    names = [j.name for j in moving if j.mimic is None]
    resolved: dict[str, tuple[int, float, float]] = {}
    for j in into.values():
        multiplier, offset, lead, seen = 1.0, 0.0, j, {j.name}
        while lead.mimic is not None and lead.kind != FIXED:
            offset += multiplier * lead.offset
            multiplier *= lead.multiplier
            if lead.mimic not in by_name:
                raise ValueError(f"joint {lead.name!r} of robot {name!r} mimics {lead.mimic!r}, which does not exist")
            if lead.mimic in seen:
                raise ValueError(f"joint {j.name!r} of robot {name!r} mimics itself through {lead.name!r}")
            lead = by_name[lead.mimic]
            seen.add(lead.name)
        if j.kind == FIXED:
            resolved[j.name] = (-1, 1.0, 0.0)
        elif lead.kind == FIXED:
            raise ValueError(f"joint {j.name!r} of robot {name!r} mimics the fixed joint {lead.name!r}")
        else:
            resolved[j.name] = (names.index(lead.name), multiplier, offset)
    return resolved, names


def _guess_tool(order: Sequence[str], into: dict[str, Joint]) -> str:
    """The end of the chain with the most moving joints; but where that chain ends in a hand, i.e. splits into several
    moving parts after at least three joints, the link that carries them."""
    depth: dict[str, int] = {}
    movers: dict[str, int] = dict.fromkeys(order, 0)  # how many children have something that moves
    for link in order:
        j = into.get(link)
        depth[link] = 0 if j is None else depth[j.parent] + (j.kind != FIXED)
    moving: dict[str, bool] = dict.fromkeys(order, False)
    for link in reversed(order):
        j = into.get(link)
        if j is not None and (moving[link] or j.kind != FIXED):
            moving[j.parent] = True
            movers[j.parent] += 1
    tip = max(order, key=lambda link: depth[link])
    link = tip
    while link in into:
        link = into[link].parent
        if movers[link] >= 2 and depth[link] >= 3:
            return link
    return tip
