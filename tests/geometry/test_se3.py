from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d.geometry.se3 import (
    apply,
    difference,
    euler_to_matrix,
    invert,
    look_at,
    matrix_to_euler,
    matrix_to_quaternion,
    matrix_to_rotvec,
    quaternion_to_matrix,
    rotvec_to_matrix,
    transform,
)
from kinema4d.types import check_transforms

finite = st.floats(-3, 3, allow_nan=False)
vectors = st.tuples(finite, finite, finite).map(lambda v: np.array(v, np.float64))
transforms = st.tuples(vectors, vectors).map(lambda v: transform(v[0], rotvec_to_matrix(v[1])))


@given(transforms, transforms, transforms)
def test_group_axioms(A, B, C):
    np.testing.assert_allclose(A @ (B @ C), (A @ B) @ C, atol=1e-12)
    np.testing.assert_allclose(A @ invert(A), np.eye(4), atol=1e-12)
    np.testing.assert_allclose(invert(A @ B), invert(B) @ invert(A), atol=1e-12)
    check_transforms(A @ B, "product")


@given(vectors)
def test_exp_and_log_are_inverse_within_half_a_turn(v):
    v = v * min(1, 3.0 / max(np.linalg.norm(v), 1e-12))
    np.testing.assert_allclose(matrix_to_rotvec(rotvec_to_matrix(v)), v, atol=1e-9)


@given(transforms, transforms)
def test_difference_is_a_metric(A, B):
    metres, radians = difference(A, B)
    back = difference(B, A)
    np.testing.assert_allclose([metres, radians], back, atol=1e-9)
    np.testing.assert_allclose(difference(A, A), 0, atol=1e-7)


def test_euler_is_the_urdf_order():
    Rx, Ry, Rz = (rotvec_to_matrix(a * np.eye(3)[i]) for i, a in enumerate((0.3, -0.5, 0.7)))
    np.testing.assert_allclose(euler_to_matrix(np.array([0.3, -0.5, 0.7])), Rz @ Ry @ Rx, atol=1e-12)


def test_quaternions_are_scalar_first():
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        quaternion_to_matrix(np.array([half, 0, 0, half])), [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12
    )
    with pytest.raises(ValueError, match="zero length"):
        quaternion_to_matrix(np.zeros(4))


@given(vectors)
def test_conversions_agree_with_scipy(v):
    from scipy.spatial.transform import Rotation

    np.testing.assert_allclose(euler_to_matrix(v), Rotation.from_euler("xyz", v).as_matrix(), atol=1e-14)
    np.testing.assert_allclose(rotvec_to_matrix(v), Rotation.from_rotvec(v).as_matrix(), atol=1e-14)
    R = rotvec_to_matrix(v)
    np.testing.assert_allclose(quaternion_to_matrix(matrix_to_quaternion(R)), R, atol=1e-14)
    np.testing.assert_allclose(euler_to_matrix(matrix_to_euler(R)), R, atol=1e-12)
    many = np.stack([v, -v, 2 * v]).reshape(3, 1, 3)
    assert rotvec_to_matrix(many).shape == euler_to_matrix(many).shape == (3, 1, 3, 3)


def test_apply_maps_points():
    T = transform(np.array([1.0, 2, 3]), rotvec_to_matrix(np.array([0, 0, np.pi / 2])))
    np.testing.assert_allclose(apply(T, np.array([[1.0, 0, 0]])), [[1, 3, 3]], atol=1e-12)


def test_look_at_puts_the_target_on_the_axis_and_up_upwards():
    T = look_at(np.array([2.0, -1, 1]), np.array([0.0, 0, 0.5]))
    target = invert(T) @ [0, 0, 0.5, 1]
    np.testing.assert_allclose(target[:2], 0, atol=1e-12)
    assert target[2] > 0
    assert (invert(T) @ [0, 0, 1.5, 1])[1] < target[1]  # higher in the world is further up (smaller v)
    with pytest.raises(ValueError, match="parallel to up"):
        look_at(np.array([0.0, 0, 2]), np.zeros(3))
    with pytest.raises(ValueError, match="sits on its target"):
        look_at(np.zeros(3), np.zeros(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda T: T * np.array([1.1, 1.1, 1.1, 1])[:, None], "not orthonormal"),
        (lambda T: T @ np.diag([1.0, 1, -1, 1]), "reflection"),
        (lambda T: T + np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0.0, 0, 0, 0.5]]), "last row"),
        (lambda T: T * np.nan, "non-finite"),
        (lambda T: T[:3], "4x4"),
    ],
)
def test_bad_transforms_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        check_transforms(change(look_at(np.array([1.0, 1, 1]), np.zeros(3))), "T_a_b")
