"""A hand on an arm is one robot: kinematics compose, names stay apart, and its name loads it again."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d.geometry.se3 import place, rotvec_to_matrix, transform
from kinema4d.robot.attach import attach
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.zoo import load_robot


@pytest.mark.parametrize(("arm", "hand"), [("ur5", "k4grip"), ("xarm7", "k4hand")])
@pytest.mark.parametrize("shift", [False, True])
def test_kinematics_compose(arm, hand, shift):
    a, b = load_robot(arm), load_robot(hand)
    T = transform(np.array([0.1, -0.2, 0.3]), rotvec_to_matrix(np.array([0.4, 0.5, 0.6]))) if shift else None
    both = attach(a, b, T_link_hand=T)
    rng = np.random.default_rng(0)
    q = rng.uniform(-1, 1, (20, both.dof))
    Ts = forward_kinematics(both, q)
    Ts_arm, Ts_hand = forward_kinematics(a, q[:, : a.dof]), forward_kinematics(b, q[:, a.dof :])
    flange = Ts_arm[:, a.link_index(a.tool_link)] @ (np.eye(4) if T is None else T)
    np.testing.assert_allclose(Ts[:, : len(a.link_names)], Ts_arm, atol=1e-12)
    np.testing.assert_allclose(Ts[:, len(a.link_names) :], flange[:, None] @ Ts_hand, atol=1e-12)
    np.testing.assert_array_equal(both.home, np.concatenate([a.home, b.home]))
    np.testing.assert_array_equal(both.lower, np.concatenate([a.lower, b.lower]))
    assert (both.parent < np.arange(len(both.link_names))).all()  # parents still come first
    assert len(set(both.link_names)) == len(both.link_names)
    assert len(set(both.joint_names)) == len(both.joint_names)
    assert len(both.visuals) == len(a.visuals) + len(b.visuals)
    shown = [both.link_names[v.link] for v in both.visuals[len(a.visuals) :]]
    assert shown == [f"hand/{b.link_names[v.link]}" for v in b.visuals]


def test_the_hand_becomes_the_tool_and_the_gripper():
    hand, both = load_robot("k4grip"), load_robot("ur5+k4grip")
    assert hand.gripper is not None
    assert both.gripper is not None
    assert both.tool_link == f"hand/{hand.tool_link}"
    assert both.gripper.joints == ("hand/knuckle_joint",)
    assert both.gripper.closed == hand.gripper.closed
    assert list(both.arm_columns) == list(range(6))  # the fingers do not move the tool


def test_another_link_can_carry_it():
    a, b = load_robot("ur5"), load_robot("k4hand")
    both = attach(a, b, link="forearm_link", T_link_hand=place(0, 0, 0.1))
    Ts = forward_kinematics(both, both.home[None])[0]
    expected = Ts[both.link_index("forearm_link")] @ place(0, 0, 0.1)
    np.testing.assert_allclose(Ts[len(a.link_names)], expected, atol=1e-12)


def test_its_name_loads_it_again():
    both = load_robot("ur5+k4grip")
    assert both.name == both.source == "ur5+k4grip"
    again = load_robot(both.source)
    q = np.linspace(-0.5, 0.5, both.dof)[None]
    np.testing.assert_array_equal(forward_kinematics(again, q), forward_kinematics(both, q))


def test_a_file_can_be_named_too(tmp_path):
    arm = tmp_path / "one+two.urdf"  # a plus in a file's name is no hand
    arm.write_text(
        "<robot name='stick'><link name='base'/><link name='end'/><joint name='j' type='revolute'>"
        "<parent link='base'/><child link='end'/><axis xyz='0 0 1'/><limit lower='-1' upper='1'/></joint></robot>"
    )
    assert load_robot(arm).dof == 1
    both = load_robot(f"{arm}+k4hand")
    assert both.source == f"{arm}+k4hand"
    assert load_robot(both.source).joint_names == ("j", "hand/finger_joint")


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match=r"'panda' has a gripper already \(panda_finger_joint1\)"):
        load_robot("panda+k4hand")
    with pytest.raises(ValueError, match=r"'ur5\+k4grip' has a gripper already"):
        load_robot("ur5+k4grip+k4hand")
    with pytest.raises(ValueError, match="unknown robot 'claw': .*k4hand"):
        load_robot("ur5+claw")
    with pytest.raises(ValueError, match="no link 'nose'"):
        attach(load_robot("ur5"), load_robot("k4hand"), link="nose")
