from __future__ import annotations

from kinema4d.world.small.machine import hides_amx


def test_a_machine_that_pretends_is_found_out():
    pretender = "processor : 0\ncpuid level : 27\nflags : fpu avx512f amx_tile amx_bf16\n\n"
    honest = pretender.replace("27", "32")
    plain = "processor : 0\ncpuid level : 13\nflags : fpu avx2\n"
    assert hides_amx(pretender)
    assert not hides_amx(honest)
    assert not hides_amx(plain)
    assert isinstance(hides_amx(), bool)
