"""Weights of others: names and sizes of the release, refusals before anything is loaded, and what is loaded is what was saved."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
import torch
from safetensors.torch import save_file
from wan_cases import an_input, traced, traced_vae

from kinema4d.world.wan import files, memory, weights
from kinema4d.world.wan.latents import KINEMA4D, PLAIN_4DNEX, PointStats
from kinema4d.world.wan.model import Variant
from kinema4d.world.wan.tiny import TOKENS, transformer, write_base

BIG = {
    "patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 36, "out_channels": 16, "text_dim": 4096,
    "freq_dim": 256, "ffn_dim": 13824, "num_layers": 40, "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6,
    "image_dim": 1280, "added_kv_proj_dim": 5120, "rope_max_seq_len": 1024,
}  # fmt: skip
"""Wan2.1-I2V-14B-480P."""


def released_base() -> dict[str, list[int]]:
    """Names and sizes of the base, from the fact sheet and not from any code."""
    c, ffn = 5120, 13824
    out: dict[str, list[int]] = {
        "patch_embedding.weight": [c, 36, 1, 2, 2],
        "patch_embedding.bias": [c],
        "scale_shift_table": [1, 2, c],
    }

    def dense(name: str, outputs: int, inputs: int) -> None:
        out[f"{name}.weight"], out[f"{name}.bias"] = [outputs, inputs], [outputs]

    e = "condition_embedder."
    dense(f"{e}time_embedder.linear_1", c, 256)
    dense(f"{e}time_embedder.linear_2", c, c)
    dense(f"{e}time_proj", 6 * c, c)
    dense(f"{e}text_embedder.linear_1", c, 4096)
    dense(f"{e}text_embedder.linear_2", c, c)
    dense(f"{e}image_embedder.ff.net.0.proj", 1280, 1280)
    dense(f"{e}image_embedder.ff.net.2", c, 1280)
    for norm, size in (("norm1", 1280), ("norm2", c)):
        out[f"{e}image_embedder.{norm}.weight"] = out[f"{e}image_embedder.{norm}.bias"] = [size]
    dense("proj_out", 64, c)
    for b in range(40):
        p = f"blocks.{b}."
        out[f"{p}scale_shift_table"] = [1, 6, c]
        out[f"{p}norm2.weight"] = out[f"{p}norm2.bias"] = [c]
        dense(f"{p}ffn.net.0.proj", ffn, c)
        dense(f"{p}ffn.net.2", c, ffn)
        for a in ("attn1", "attn2"):
            for layer in ("to_q", "to_k", "to_v", "to_out.0", *(("add_k_proj", "add_v_proj") if a == "attn2" else ())):
                dense(f"{p}{a}.{layer}", c, c)
            for norm in ("norm_q", "norm_k", *(("norm_added_k",) if a == "attn2" else ())):
                out[f"{p}{a}.{norm}.weight"] = [c]
    return out


def released_lora() -> dict[str, list[int]]:
    return {
        f"transformer.blocks.{b}.{a}.{layer}.lora_{side}.weight": [64, 5120] if side == "A" else [5120, 64]
        for b in range(40) for a in ("attn1", "attn2") for layer in ("to_q", "to_k", "to_v", "to_out.0") for side in "AB"
    }  # fmt: skip


def released_added(variant: Variant) -> dict[str, list[int]]:
    out = {
        "learnable_domain_embeddings": [2, 5120], "patch_embedding_arm.weight": [128, 20, 1, 15, 15], "patch_embedding_arm.bias": [128],
        "arm_ln.weight": [128], "arm_ln.bias": [128], "arm_pos_emb": [1, 128, 13, 4, 6], "arm_domain_emb": [2, 128],
        "arm_patch_proj.weight": [5120, 128], "arm_patch_proj.bias": [5120], "arm_cond_proj.weight": [16, 16], "arm_cond_proj.bias": [16],
    }  # fmt: skip
    return out if variant == "act" else {k: v for k, v in out.items() if k != "arm_domain_emb"}


def hollow(path: Path, shapes: dict[str, list[int]], *, dtype: str = "BF16", short: int = 0) -> None:
    """A safetensors file of the right size with nothing in it: a hole on the disk."""
    width, at, head = files.WIDTHS[dtype], 0, {}
    for name, shape in shapes.items():
        size = width
        for n in shape:
            size *= n
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    blob = json.dumps(head).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(blob)) + blob)
        file.truncate(8 + len(blob) + at - short)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release as hollow files: 33 GB that take no room."""
    root = tmp_path_factory.mktemp("release")
    base, shapes = root / "wan" / "transformer", released_base()
    names = sorted(shapes)
    parts = [names[i::14] for i in range(14)]
    where = {}
    for i, part in enumerate(parts):
        file = f"diffusion_pytorch_model-{i + 1:05d}-of-00014.safetensors"
        hollow(base / file, {n: shapes[n] for n in part})
        where |= dict.fromkeys(part, file)
    (base / files.INDEX).write_text(json.dumps({"weight_map": where}))
    (base / "config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel", **BIG}))
    for variant in ("act", "pmcond"):
        hollow(root / variant / weights.LORA, released_lora())
        hollow(root / variant / weights.ADDED, released_added(variant), dtype="F32")
    return root


def test_what_it_takes_is_counted_from_its_sizes():
    shapes = {n: s for n, s in released_base().items() if "text_embedder" not in n}
    assert memory.parameters_of(BIG) == sum(torch.Size(s).numel() for s in shapes.values())
    whole = memory.load_of(BIG)
    assert whole.tokens == 35_100
    needs = {n: memory.load_of(BIG, **o).total_gb for n, o in memory.LOWER.items()}
    assert all(gb < whole.total_gb for gb in needs.values())
    assert whole.total_gb == pytest.approx(whole.weights_gb + 7.2, abs=0.1)  # decoding takes more than a pass
    assert needs["--wan.offload model"] == pytest.approx(32.7 + 4.1, abs=0.1)  # then the transformer is elsewhere
    assert f"--wan.offload sequential: {needs['--wan.offload sequential']:.1f} GB" in memory.advice(BIG)


def test_sharing_the_weights_out_lowers_what_training_takes():
    alone, eight = (memory.training_gb(BIG, shard=n) for n in (1, 8))
    whole = 2 * memory.parameters_of(BIG) / 1e9 + 16 * 209.7e6 / 1e9
    assert alone - eight == pytest.approx(whole * 7 / 8, rel=1e-3)
    assert whole < alone < 80


def test_what_is_computed_is_what_a_trace_of_the_same_widths_takes():
    """Two layers of the 14B model: activations do not depend on their number, work does."""
    config = {**BIG, "num_layers": 2}
    found, said = traced(config), memory.load_of(config)
    assert found["activations_gb"] == pytest.approx(said.activations_gb, rel=0.1)
    assert found["tflop"] == pytest.approx(said.tflop, rel=0.03)
    small: dict[str, Any] = {"frames": 5, "height": 240, "width": 120}
    assert traced_vae(**small) == pytest.approx(memory.load_of(config, **small).vae_gb, rel=0.1)
    assert found["weights_gb"] == pytest.approx(2 * said.parameters / 1e9, rel=0.02)


def test_the_fact_sheet_s_counts():
    shapes = released_base()
    assert len(shapes) == 1303
    assert sum(torch.Size(s).numel() for s in shapes.values()) == pytest.approx(16.39e9, rel=1e-3)
    assert len(released_lora()) == 640
    assert sum(torch.Size(s).numel() for s in released_lora().values()) == pytest.approx(209.7e6, rel=1e-3)
    assert sum(torch.Size(s).numel() for s in released_added("act").values()) == pytest.approx(1.29e6, rel=0.01)


@pytest.mark.parametrize("variant", ["act", "pmcond"])
def test_the_release_fits_key_for_key(big: Path, variant: Variant):
    adapter = weights.read_adapter(big / variant)
    assert (adapter.kind, adapter.variant, adapter.rank, adapter.scale, adapter.stats) == (
        "kinema4d",
        variant,
        64,
        0.5,
        KINEMA4D,
    )
    model = weights.build(big / "wan" / "transformer", adapter)
    assert next(model.parameters()).is_meta
    found = weights.check_base(big / "wan" / "transformer", model)
    assert len(found) == 1303 - 4  # but the words
    weights.check_adapter(adapter, model)
    assert len(weights.lora_layers(model)) == 320


def test_what_does_not_fit_is_refused_by_name_before_it_is_loaded(big: Path, tmp_path: Path):
    base = big / "wan" / "transformer"
    adapter = weights.read_adapter(big / "act")
    model = weights.build(base, adapter)
    half = tmp_path / "half"
    hollow(half / "model.safetensors", {"patch_embedding.bias": [5120]}, short=100)
    with pytest.raises(
        ValueError, match=r"model.safetensors has [\d,]+ bytes of [\d,]+: it was downloaded only in part"
    ):
        weights.check_base(half, model)
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / files.INDEX).write_text((base / files.INDEX).read_text())
    with pytest.raises(ValueError, match="lacks 14 of 14 shards, first diffusion_pytorch_model-00001"):
        weights.check_base(lost, model)
    shapes = released_base()
    del shapes["blocks.7.attn2.add_k_proj.bias"]
    hollow(tmp_path / "less" / "m.safetensors", {**shapes, "blocks.7.attn2.smell.weight": [4]})
    with pytest.raises(
        ValueError, match=r"lacks 'blocks.7.attn2.add_k_proj.bias' and has 'blocks.7.attn2.smell.weight'"
    ):
        weights.check_base(tmp_path / "less", model)
    lora = {k: [8, v[1]] if "lora_A" in k else [v[0], 8] for k, v in released_lora().items()}
    lora["transformer.blocks.0.attn1.to_q.lora_A.weight"] = [16, 5120]
    hollow(tmp_path / "ranks" / weights.LORA, lora)
    with pytest.raises(ValueError, match=r"LoRAs of ranks \[8, 16\]"):
        weights.read_adapter(tmp_path / "ranks")
    small = {k: [64, 1536] if "lora_A" in k else [1536, 64] for k, v in released_lora().items()}
    hollow(tmp_path / "small" / weights.LORA, small)
    hollow(tmp_path / "small" / weights.ADDED, released_added("act"), dtype="F32")
    with pytest.raises(ValueError, match=r"is \(64, 1536\) and \(1536, 64\), expected \(64, 5120\).*of another base"):
        weights.check_adapter(weights.read_adapter(tmp_path / "small"), model)
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "pytorch_lora_weights.bin").write_bytes(b"\x80\x04")
    with pytest.raises(ValueError, match="is a pickle, which may run any code"):
        weights.read_adapter(tmp_path / "pickle")
    with pytest.raises(ValueError, match="is no adapter of ours"):
        weights.read_adapter(lost)
    (tmp_path / "t2v").mkdir()
    (tmp_path / "t2v" / "config.json").write_text(json.dumps({**BIG, "in_channels": 16, "image_dim": None}))
    with pytest.raises(ValueError, match="of no image-to-video model: it has 16 input channels"):
        weights.build(tmp_path / "t2v", None)


def test_what_is_loaded_is_base_plus_half_of_the_lora(tmp_path: Path):
    state = write_base(tmp_path / "base")
    other = transformer("pmcond", 5)
    added = {k: v for k, v in other.state_dict().items() if weights.is_added(k)}
    lora = {}
    for name, layer in weights.lora_layers(other).items():
        lora[f"transformer.{name}.lora_A.weight"] = torch.randn(4, layer.in_features)
        lora[f"transformer.{name}.lora_B.weight"] = torch.randn(layer.out_features, 4)
    (tmp_path / "k").mkdir()
    save_file(lora, tmp_path / "k" / weights.LORA)
    save_file(added, tmp_path / "k" / weights.ADDED)
    model, adapter = weights.load(tmp_path / "base", tmp_path / "k", dtype=torch.float32, image_tokens=TOKENS)
    assert adapter is not None
    assert (adapter.variant, adapter.rank) == ("pmcond", 4)
    name = "blocks.1.attn2.to_out.0"
    want = (
        state[f"{name}.weight"]
        + 0.5 * lora[f"transformer.{name}.lora_B.weight"] @ lora[f"transformer.{name}.lora_A.weight"]
    )
    torch.testing.assert_close(model.state_dict()[f"{name}.weight"], want)
    torch.testing.assert_close(model.arm_cond_proj.weight.detach(), added["arm_cond_proj.weight"])
    torch.testing.assert_close(model.proj_out.weight.detach(), state["proj_out.weight"])
    assert not any(p.is_meta for p in [*model.parameters(), *model.buffers()])
    x, time, arm, image = an_input("pmcond")
    assert torch.isfinite(model(x, time, arm, image)).all()
    plain, _ = weights.load(tmp_path / "base", tmp_path / "k", dtype=torch.float32, image_tokens=TOKENS, fuse=False)
    torch.testing.assert_close(plain.state_dict()[f"{name}.weight"], state[f"{name}.weight"])


def test_added_parameters_stay_wide_beside_a_base_of_another_type(tmp_path: Path):
    """A real base is in bfloat16 and what was added to it in float32; here the base is wider instead, which every CPU can compute."""
    write_base(tmp_path / "base")
    model, _ = weights.load(tmp_path / "base", dtype=torch.float64, image_tokens=TOKENS, arm=(3, 2, 2, 3, 8))
    assert model.proj_out.weight.dtype == torch.float64
    assert model.arm_cond_proj.weight.dtype == model.patch_embedding_arm.weight.dtype == torch.float32
    x, time, arm, image = (v.double() for v in an_input("act"))
    with torch.no_grad():
        wide = model(x, time, arm, image)
        narrow = model.float()(x.float(), time.float(), arm.float(), image.float())
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-4, atol=1e-4)


def test_4dnex_brings_domains_and_the_robot_starts_at_zero(tmp_path: Path):
    write_base(tmp_path / "base")
    for i, content in enumerate((torch.randn(2, 48), {"learnable_domain_embeddings": torch.randn(2, 48)})):
        folder = tmp_path / f"n{i}"
        folder.mkdir()
        torch.save(content, folder / "learnable_domain_embeddings.pt")
        model, adapter = weights.load(tmp_path / "base", folder, dtype=torch.float32, image_tokens=TOKENS)
        assert adapter is not None
        assert (adapter.kind, adapter.stats) == ("4dnex", PLAIN_4DNEX)
        want = content if isinstance(content, torch.Tensor) else content["learnable_domain_embeddings"]
        torch.testing.assert_close(model.learnable_domain_embeddings.detach(), want)
        assert not model.arm_cond_proj.weight.any()


def test_our_own_adapters_come_back_with_their_scale(tmp_path: Path):
    write_base(tmp_path / "base")
    model = transformer("act", 5)
    added = {k: v for k, v in model.state_dict().items() if weights.is_added(k)}
    lora = {}
    for name, layer in weights.lora_layers(model).items():
        lora[f"transformer.{name}.lora_A.weight"] = torch.randn(2, layer.in_features)
        lora[f"transformer.{name}.lora_B.weight"] = torch.randn(layer.out_features, 2)
    stats = PointStats(mean=0.1, std=2.0)
    weights.save_adapter(tmp_path / "o", lora, added, alpha=3.0, stats=stats, about={"steps": 7})
    adapter = weights.read_adapter(tmp_path / "o")
    assert (adapter.kind, adapter.scale, adapter.stats) == ("ours", 1.5, stats)
    read, _ = weights.load(tmp_path / "base", tmp_path / "o", dtype=torch.float32, image_tokens=TOKENS)
    torch.testing.assert_close(read.arm_pos_emb.detach(), added["arm_pos_emb"])
