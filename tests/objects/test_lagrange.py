"""Laws of mechanics, on objects whose motion is known by formula."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
from torch import Tensor

from kinema4d.objects.body import Body, State, at_rest, jacobian, moved, points
from kinema4d.objects.exact import beam, box, pendulum
from kinema4d.objects.lagrange import Conditions, Motion, Pin, Push, ground, simulate


def state(body: Body, *q: float, **where: Tensor) -> State:
    return at_rest(body, torch.tensor([q], dtype=torch.float64), **where)


def drift(motion: Motion) -> float:
    """Largest change of the energy, of the largest kinetic energy."""
    return float((motion.energy - motion.energy[0]).abs().max() / torch.stack(motion.kinetic).max())


@pytest.mark.parametrize(
    ("lengths", "begin"), [((0.5,), (2.0,)), ((0.45, 0.4), (0.9, -0.6)), ((0.3, 0.3, 0.3), (0.5, 0.3, -0.2))], ids=str
)
def test_energy_stays_and_the_rest_is_of_second_order(lengths: tuple[float, ...], begin: tuple[float, ...]):
    body = pendulum(lengths)
    found = [drift(simulate(body, state(body, *begin), Conditions(), seconds=3, step=h)) for h in (0.01, 0.005)]
    assert found[0] < 0.003, found
    assert 3 < found[0] / found[1] < 5, found


def test_motion_does_not_depend_on_the_coordinates():
    body = pendulum((0.45, 0.4))
    mix = torch.tensor([[1.0, 0.4], [-0.3, 0.8]], dtype=torch.float64)

    def other(z: Tensor) -> Tensor:  # angles as another function of other coordinates
        return body.shape((z + 0.3 * z.sin()) @ mix.T)

    angles = torch.tensor([0.9, -0.6], dtype=torch.float64)
    want = torch.linalg.solve(mix, angles)
    z = want.clone()
    for _ in range(60):
        z = z - (z + 0.3 * z.sin() - want) / (1 + 0.3 * z.cos())
    strange = replace(body, shape=other)
    a, b = (
        simulate(bd, st, Conditions(), seconds=3)
        for bd, st in ((body, state(body, 0.9, -0.6)), (strange, state(strange, *z.tolist())))
    )
    torch.testing.assert_close(b.points[0], a.points[0])
    assert float((torch.stack(a.points) - torch.stack(b.points)).abs().max()) < 2e-4 * 0.85


def test_the_same_motion_as_another_simulator():
    mujoco = pytest.importorskip("mujoco", reason="compared with MuJoCo: pip install 'kinema4d[mjcf]'")
    xml = """<mujoco><option timestep="0.001" integrator="RK4"><flag contact="disable"/></option><worldbody><body>
      <joint axis="0 1 0"/><geom type="box" density="1000" size=".03 .03 .225" pos="0 0 -.225"/><body pos="0 0 -.45">
      <joint axis="0 1 0"/><geom type="box" density="1000" size=".03 .03 .2" pos="0 0 -.2"/></body></body></worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    data.qpos[:] = 0.9, -0.6
    body = pendulum((0.45, 0.4))
    made = simulate(body, state(body, 0.9, -0.6), Conditions(), seconds=1, step=0.002)
    for frame in range(501):
        if frame % 100 == 0:
            truth = body.shape(torch.tensor(data.qpos.copy())[None])
            assert float((made.points[frame] - truth).norm(dim=-1).max()) < 0.005 * 0.85, frame
        mujoco.mj_step(model, data, 2)


def test_a_beam_swings_at_its_frequencies():
    body, frequency = beam(young=1e6)
    still = Conditions(gravity=(0, 0, 0))
    for i in range(2):
        q = torch.zeros(1, 3, dtype=torch.float64)
        q[0, i] = 0.001
        period = 2 * math.pi / float(frequency[i])
        made = simulate(body, at_rest(body, q), still, seconds=period, step=period / 200)
        torch.testing.assert_close(made.states[-1].q, q, rtol=0, atol=2e-6)
        assert drift(made) < 0.003


def test_stiff_beams_do_not_explode_when_forces_are_taken_at_the_end():
    body, frequency = beam(young=1e10)
    step = 5.0 / float(frequency[0])
    q = torch.full((1, 3), 1e-3, dtype=torch.float64)
    calm = simulate(body, at_rest(body, q), Conditions(), seconds=20 * step, step=step, implicit=True)
    assert calm.stopped is None
    assert float(calm.states[-1].q.abs().max()) < 1e-3
    short = 2.2 / float(frequency[2])  # ten per cent more than the fastest mode allows
    wild = simulate(body, at_rest(body, q), Conditions(), seconds=400 * short, step=short)
    assert wild.stopped is not None
    assert "in one step at" in wild.stopped
    assert 3 < len(wild) < 400


def test_slopes_are_those_of_differences():
    body = replace(pendulum((0.45, 0.4)), free=True)
    g = torch.Generator().manual_seed(0)
    q, place, turn = (torch.randn(2, n, generator=g, dtype=torch.float64) for n in (2, 3, 3))
    here = at_rest(body, q, place=place, turn=torch.linalg.matrix_exp(torch.zeros(2, 3, 3, dtype=torch.float64)))
    here = moved(body, here, torch.cat([place, turn, 0 * q], 1))
    x, slopes = jacobian(body, here)
    torch.testing.assert_close(x, points(body, here))
    for i in range(8):
        d = torch.zeros(2, 8, dtype=torch.float64)
        d[:, i] = 1e-6
        ahead, behind = points(body, moved(body, here, d)), points(body, moved(body, here, -d))
        torch.testing.assert_close(slopes[..., i], (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


def test_a_free_box_keeps_its_momentum_and_energy_while_it_tumbles():
    body = box()
    spin = torch.tensor([[0.3, 0.0, 1.0, 0.1, 8.0, 0.2]], dtype=torch.float64)  # about its middle axis: unstable
    made = simulate(body, state(body), Conditions(gravity=(0, 0, 0)), seconds=2, step=0.005, velocity=spin.expand(1, 6))
    momentum = torch.stack(made.momentum)
    torch.testing.assert_close(momentum, momentum[:1].expand_as(momentum), rtol=1e-6, atol=1e-9)
    assert drift(made) < 0.003
    mass = body.mass[:, None]
    turned = [torch.linalg.cross(a, mass * (b - a)).sum(1) for a, b in zip(made.points, made.points[1:], strict=False)]
    turns = torch.stack(turned)
    torch.testing.assert_close(turns, turns[:1].expand_as(turns), rtol=2e-3, atol=1e-8)


def test_pushes_give_their_impulse_and_falling_is_falling():
    body = box()
    force = torch.tensor([2.0, 0, 0])
    push = Push(on=torch.arange(8), force=force, begin=0.1, end=0.3)
    made = simulate(body, state(body), Conditions(pushes=(push,)), seconds=0.5)
    assert float(made.momentum[-1][0, 0]) == pytest.approx(0.4, rel=0.03)
    assert float(made.states[-1].place[0, 2]) == pytest.approx(-9.81 * 0.25 / 2, rel=1e-6)


def test_damping_takes_energy_at_its_rate():
    body = pendulum((0.5,))
    made = simulate(body, state(body, 0.1), Conditions(damping=1.0), seconds=4)
    peaks = torch.stack([s.q for s in made.states])[:, 0, 0].abs()
    late = float(peaks[300:].max())
    assert late == pytest.approx(0.1 * math.exp(-0.5 * 3.2), rel=0.2)
    assert bool((made.energy.diff(dim=0) < 1e-6).all())


def test_what_is_pinned_stays_and_what_is_led_follows():
    chain = pendulum((0.3, 0.3))
    body = replace(chain, shape=lambda q: chain.shape(torch.cat([0 * q, q], 1)), coordinates=1, free=True)
    top = (body.shape(torch.zeros(1, 1, dtype=torch.float64))[0, :, 2] > -0.02).nonzero()[:, 0]
    held = simulate(body, state(body, 1.0), Conditions(pins=(Pin(on=top),)), seconds=1)
    track = torch.stack(held.points)[:, 0, top]
    assert float((track - track[:1]).abs().max()) < 1e-6
    assert drift(held) < 0.01

    def path(t: float) -> Tensor:
        return held.points[0][0, top] + torch.tensor([0.2 * t, 0, 0])

    led = simulate(body, state(body, 1.0), Conditions(pins=(Pin(on=top, path=path),)), seconds=1)
    torch.testing.assert_close(led.points[-1][0, top], path(1.0), rtol=0, atol=1e-6)


def test_a_hand_holds_for_its_time_and_its_work_is_what_the_body_has():
    body = pendulum((0.5,))
    tip = body.shape(torch.zeros(1, 1, dtype=torch.float64))[0, :, 2].argmin()[None]
    goal = body.shape(torch.tensor([[1.0]], dtype=torch.float64))[0, tip]
    hand = Pin(on=tip, goal=goal, begin=0.1, end=0.5, give=0.02)
    made = simulate(body, state(body, 0.0), Conditions(pins=(hand,)), seconds=0.6)
    assert made.stopped is None
    assert float((made.points[50][0, tip] - goal).norm()) < 1e-3
    force, at = torch.stack(made.hold)[:, 0, 0], torch.stack(made.points)[:, 0, tip[0]]
    assert not bool(force[:10].any())
    assert not bool(force[50:].any())
    work = ((force[1:] + force[:-1]) / 2 * at.diff(dim=0)).sum(1).cumsum(0)
    torch.testing.assert_close(work, (made.energy - made.energy[0])[1:, 0], rtol=0, atol=0.01 * float(work.max()))
    assert float(work[-1]) > 1.0
    weak = simulate(body, state(body, 0.0), Conditions(pins=(replace(hand, strength=0.5),)), seconds=0.6)
    assert float(torch.stack(weak.hold).norm(dim=-1).max()) == pytest.approx(0.5, rel=1e-6)
    assert float(torch.stack(weak.miss)[45]) > 0.2
    assert float(weak.states[-1].q.abs()) < 0.2


def test_a_hand_takes_over_what_moves_without_a_jerk():
    body = box()
    fast = torch.tensor([[1.0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    hand = Pin(on=torch.tensor([8]), goal=torch.tensor([[0.4, -0.05, -0.025]]), begin=0.1, end=0.6, give=0.02)
    made = simulate(body, state(body), Conditions(gravity=(0, 0, 0), pins=(hand,)), seconds=0.6, velocity=fast)
    force = torch.stack(made.hold)[:, 0, 0].norm(dim=-1)
    mass = float(body.mass.sum())
    assert (
        1.0 < float(force.max()) < mass * 20
    )  # to stop it within a step would take a hundred metres per squared second
    assert float((made.points[60][0, 8] - hand.goal).norm()) < 2e-3  # pyright: ignore[reportOperatorIssue]


def test_pins_that_cannot_be_stop_the_run_by_name():
    body = pendulum((0.5,))
    tip = torch.tensor([len(body.mass) - 1])
    away = lambda t: torch.tensor([[0.0, 1.0 * t, 0.0]]) + points(body, state(body, 0.0))[0, tip]  # noqa: E731
    made = simulate(body, state(body, 0.0), Conditions(pins=(Pin(on=tip, path=away),)), seconds=0.5)
    assert "a pinned point is 0.01 m off where it is held: the object cannot be there" in str(made.stopped)
    for wrong, says in (
        ({"begin": 2.0, "end": 1.0}, "ends after that, got 2-1 s"),
        ({"goal": torch.zeros(1, 3)}, "needs an end"),
        ({"strength": 3.0}, "strength is of a hand"),
    ):
        with pytest.raises(ValueError, match=says):
            Pin(on=tip, **wrong)  # pyright: ignore[reportArgumentType]


def test_pins_that_say_the_same_are_solved_at_once():
    """Four points of one rigid part, of which three would do; it took thirty rounds a step."""
    body, calls = box(), []

    def counted(q: Tensor) -> Tensor:
        calls.append(1)
        return body.shape(q)

    rigid = Body(shape=counted, mass=body.mass, coordinates=0, free=True)
    held = simulate(rigid, state(rigid), Conditions(pins=(Pin(on=torch.arange(8)),)), seconds=0.1)
    assert held.stopped is None
    assert float((held.points[-1] - held.points[0])[0, :8].abs().max()) < 1e-6
    assert len(calls) < 12 * len(held)


def test_what_falls_on_the_ground_stays_on_it_and_gains_nothing():
    body, high = box(), torch.tensor([0.0, 0.0, 0.3], dtype=torch.float64)
    tilted = torch.linalg.matrix_exp(torch.tensor([[0, 0, 0.5], [0, 0, -0.7], [-0.5, 0.7, 0]], dtype=torch.float64))
    made = simulate(body, state(body, place=high, turn=tilted), Conditions(obstacle=ground()), seconds=2, step=0.005)
    assert made.stopped is None
    size = 0.23
    assert float(torch.stack(made.penetration).max()) < 0.01 * size
    assert float((made.energy - made.energy[0]).max() / made.energy[0]) < 0.01
    assert float(made.kinetic[-1]) < 1e-3 * float(made.energy[0])
    assert float(made.points[-1][0, :, 2].min()) > -0.01 * size


@pytest.mark.parametrize(("friction", "slides"), [(0.2, True), (0.6, False)])
def test_a_box_slides_on_a_slope_only_if_it_is_too_steep(friction: float, slides: bool):
    angle, body = math.radians(20), box()
    tilt = torch.linalg.matrix_exp(angle * torch.tensor([[0, 0, 1.0], [0, 0, 0], [-1, 0, 0]], dtype=torch.float64))
    up = tilt @ torch.tensor([0, 0, 1.0], dtype=torch.float64)
    slope = lambda x: (x @ up, up.expand_as(x))  # noqa: E731
    begin = state(body, place=0.025 * up, turn=tilt)
    made = simulate(body, begin, Conditions(obstacle=slope, friction=friction), seconds=0.5, step=0.005)
    way = float((made.states[-1].place - begin.place).norm())
    want = 0.5 * 9.81 * (math.sin(angle) - friction * math.cos(angle)) * 0.25
    assert way == pytest.approx(want, rel=0.05) if slides else way < 0.002


def test_copies_move_as_each_would_alone():
    body = pendulum((0.45, 0.4))
    q = torch.tensor([[0.9, -0.6], [0.2, 1.0], [-1.0, 0.1]], dtype=torch.float64)
    together = simulate(body, at_rest(body, q), Conditions(), seconds=0.5)
    for i in range(3):
        alone = simulate(body, at_rest(body, q[i : i + 1]), Conditions(), seconds=0.5)
        torch.testing.assert_close(together.points[-1][i], alone.points[-1][0], rtol=0, atol=1e-9)


def test_coordinates_end_at_a_wall_that_is_no_spring_inside():
    body = replace(pendulum((0.5,)), reach=torch.tensor([[-0.5, 0.5]]))
    made = simulate(body, state(body, 0.4), Conditions(), seconds=1)
    free = simulate(pendulum((0.5,)), state(body, 0.4), Conditions(), seconds=1)
    torch.testing.assert_close(made.points[-1], free.points[-1])
    fast = torch.tensor([[6.0]], dtype=torch.float64)
    hit = simulate(body, state(body, 0.0), Conditions(), seconds=1, velocity=fast)
    q = torch.stack([s.q for s in hit.states])
    assert float(q.abs().max()) < 0.8
    assert float(q.min()) < 0


def test_redundant_coordinates_are_refused_not_simulated():
    body = pendulum((0.5,))
    twice = replace(body, shape=lambda q: body.shape(q.sum(1, keepdim=True)), coordinates=2)
    made = simulate(twice, state(twice, 0.3, 0.3), Conditions(), seconds=1)
    assert made.stopped is not None
    assert "not independent" in made.stopped
    with pytest.raises(ValueError, match="the body has 2 coordinates, got"):
        state(twice, 0.3)
    with pytest.raises(ValueError, match="seconds and step must be positive"):
        simulate(body, state(body, 0.3), Conditions(), seconds=1, step=0)


def test_a_step_without_an_answer_stops_the_run():
    """So fast that within a step it turns by more than Newton's method can follow."""
    body = pendulum((0.5,))
    start = at_rest(body, torch.zeros(1, 1, dtype=torch.float64))
    made = simulate(body, start, Conditions(), seconds=0.5, step=0.01, velocity=torch.full((1, 1), 250.0).double())
    assert made.stopped is not None
    assert len(made) < 20
