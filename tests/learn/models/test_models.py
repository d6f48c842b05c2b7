"""Backbones and heads: shapes, the paper's parameter count, and files that hold what was saved."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ray_backfill.core.errors import InputError
from ray_backfill.learn.models.apply import load_network, save_network
from ray_backfill.learn.models.backbones import (
    Backbone,
    BackboneInfo,
    check_arch,
    load_backbone,
    pixels_to_float,
    save_backbone,
)
from ray_backfill.learn.papers.rank_merge import Heads
from ray_backfill.learn.training.settings import BackboneSettings


@pytest.mark.parametrize(
    ("arch", "channels", "size"), [("convnet", 1, 28), ("convnet", 3, 32), ("resnet18", 3, 64), ("vit_b_32", 3, 64)]
)
def test_backbones_embed_and_classify(arch: str, channels: int, size: int) -> None:
    model = Backbone(BackboneSettings(arch, dim=16, width=4), channels, size, n_classes=7)
    embedding, logits = model(torch.rand(2, channels, size, size))
    assert embedding.shape == (2, 16)
    assert logits.shape == (2, 7)


def test_resnets_have_the_published_size() -> None:
    """torchvision's ResNet-18 and -50 without their classifiers: 11,176,512 and 23,508,032 parameters."""
    for arch, parameters in [("resnet18", 11_176_512), ("resnet50", 23_508_032)]:
        trunk = Backbone(BackboneSettings(arch), 3, 224, 2).trunk
        assert sum(p.numel() for p in trunk.parameters()) == parameters


def test_any_hugging_face_folder_is_a_backbone(tmp_path: Path) -> None:
    """Weights are loaded when asked for; the pooled output is the trunk's."""
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    original = transformers.ViTModel(config).eval()
    original.save_pretrained(tmp_path)
    settings = BackboneSettings(f"hf:{tmp_path}", dim=4, pretrained=True)
    loaded = Backbone(settings, 3, 16, 2).eval()
    pixels = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(loaded.trunk(pixels), original(pixel_values=pixels).pooler_output)
        fresh = Backbone(BackboneSettings(f"hf:{tmp_path}", dim=4), 3, 16, 2).eval()
        assert not torch.equal(fresh.trunk(pixels), loaded.trunk(pixels))


TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    "config",
    [
        transformers.ViTConfig(**TINY, image_size=16, patch_size=8),
        transformers.CLIPConfig(
            vision_config={**TINY, "image_size": 16, "patch_size": 8}, text_config={**TINY, "vocab_size": 99}
        ),
        transformers.BlipConfig(
            vision_config={**TINY, "image_size": 16, "patch_size": 8}, text_config={**TINY, "vocab_size": 99}
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_a_saved_hugging_face_backbone_needs_its_original_no_more(
    config: transformers.PretrainedConfig, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    transformers.AutoModel.from_config(config).save_pretrained(original)
    (original / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}'
    )
    info = BackboneInfo(BackboneSettings(f"hf:{original}", dim=4, pretrained=True), 3, 16, classes=[0, 1])
    backbone = info.build().eval()
    assert backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    save_backbone(tmp_path / "b", backbone, info)
    shutil.rmtree(original)
    loaded, _ = load_backbone(tmp_path / "b")
    pixels = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(loaded.embed(pixels), backbone.embed(pixels), rtol=0, atol=0)


@pytest.mark.parametrize(
    "config",
    [
        transformers.MobileNetV2Config(image_size=32, depth_multiplier=0.35),
        transformers.ConvNextConfig(hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1]),
        transformers.Dinov2Config(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_other_kinds_of_models_serve_as_well(config: transformers.PretrainedConfig, tmp_path: Path) -> None:
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    embedding, _ = Backbone(BackboneSettings(f"hf:{tmp_path}", dim=4), 3, 32, 2)(torch.rand(2, 3, 32, 32))
    assert embedding.shape == (2, 4)


def test_a_model_that_draws_lots_is_refused(tmp_path: Path) -> None:
    config = transformers.ViTMAEConfig(**TINY, image_size=32, patch_size=8)
    transformers.ViTMAEModel(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="a different embedding each time"):
        check_arch(BackboneSettings(f"hf:{tmp_path}"), 3, 32)


def test_a_checkpoint_imports_models_of_transformers_only(tmp_path: Path) -> None:
    config = {"model": "subprocess:Popen", "config_class": "subprocess:Popen", "config": {}}
    with pytest.raises(InputError, match="'subprocess:Popen', which is not a model of transformers"):
        Backbone(BackboneSettings("hf:x"), 3, 32, 2, config)


def test_images_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match="vit_b_32 does not accept images of 28 x 28 x 1"):
        check_arch(BackboneSettings("vit_b_32"), 1, 28)


def test_unknown_architectures_and_missing_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown architecture 'resnet19'; did you mean resnet18"):
        Backbone(BackboneSettings("resnet19"), 3, 32, 2)
    with pytest.raises(InputError, match="cannot be loaded"):
        Backbone(BackboneSettings(f"hf:{tmp_path}/nothing"), 3, 32, 2)


def test_pixels_become_channels_first_in_0_to_1() -> None:
    pixels = torch.tensor([[[[0, 51], [255, 102]]]], dtype=torch.uint8).permute(0, 2, 1, 3)
    assert pixels_to_float(pixels).shape == (1, 2, 2, 1)
    assert pixels_to_float(pixels)[0, :, 0, 0].tolist() == pytest.approx([0.0, 0.2])


def test_two_heads_of_128_dimensions_have_132_864_parameters() -> None:
    """The paper's "132.8K" (B.3)."""
    heads = Heads(128, 128, learn_new=True)
    assert sum(p.numel() for p in heads.parameters()) == 132_864


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_heads_have_so_many_blocks(blocks: int) -> None:
    heads = Heads(3, 5, learn_new=True, blocks=blocks)
    assert sum(isinstance(m, torch.nn.Linear) for m in heads.psi.modules()) == blocks
    reverse, forward = heads(torch.rand(4, 5))
    assert (reverse.shape, forward.shape) == ((4, 3), (4, 5))


def test_files_hold_what_was_saved(tmp_path: Path) -> None:
    info = BackboneInfo(BackboneSettings(dim=8, width=4), channels=1, image_size=8, classes=[2, 5])
    backbone = info.build().eval()
    save_backbone(tmp_path / "b", backbone, info)
    loaded, loaded_info = load_backbone(tmp_path / "b")
    assert loaded_info == info
    pixels = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(loaded.embed(pixels), backbone.embed(pixels), rtol=0, atol=0)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"backbone\.json cannot be read"):
        load_backbone(tmp_path)
    save_network(tmp_path, Heads(3, 4))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(InputError, match=r"model\.safetensors cannot be loaded.*train it again"):
        load_network(tmp_path)


@pytest.mark.parametrize(
    ("arch", "size", "parameters"),
    # ml-fct's networks with 128 dimensions, counted from its layers: the last block has 512 -> 128 -> 128 or
    # 2048 -> 512 -> 512 -> 128 channels, and a 1 x 1 convolution beside it. (11,176,512 - 4,720,640 + 803,584 and
    # 23,508,032 - 1,052,672 + 65,792 + 262,400.)
    [("convnet", 28, None), ("resnet18", 64, 7_259_456), ("resnet50", 64, 22_783_552)],
)
def test_as_published_the_embedding_is_the_mean_of_the_last_relu(arch: str, size: int, parameters: int | None) -> None:
    torch.manual_seed(0)
    model = Backbone(BackboneSettings(arch, width=4, last_layer="relu"), 3, size, n_classes=7).eval()
    last: list[torch.Tensor] = []
    for module in model.trunk.modules():
        if isinstance(module, torch.nn.ReLU):
            module.register_forward_hook(lambda _, __, output: last.append(output))
    with torch.no_grad():
        embedding, logits = model(torch.rand(2, 3, size, size))
    # The small convnet pools before the mean.
    pooled = torch.nn.functional.max_pool2d(last[-1], 2, ceil_mode=True) if arch == "convnet" else last[-1]
    torch.testing.assert_close(embedding, pooled.mean((2, 3)))
    assert embedding.shape == (2, 128)
    assert embedding.min() >= 0
    assert model.classifier.bias is None
    torch.testing.assert_close(logits, embedding @ model.classifier.weight.T)
    assert parameters in (None, sum(p.numel() for p in model.trunk.parameters()))


def test_as_published_a_vit_has_no_pooler() -> None:
    model = Backbone(BackboneSettings("vit_b_32", dim=16, last_layer="relu"), 3, 32, 2).eval()
    assert not any("pooler" in name for name, _ in model.named_parameters())
    vit: Any = model.trunk.model
    pixels = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        token = vit(pixel_values=(pixels - model.mean) / model.std).last_hidden_state[:, 0]
        torch.testing.assert_close(model.embed(pixels), model.project(token))
    assert model.classifier.bias is None


def test_models_of_the_hub_keep_their_last_block() -> None:
    with pytest.raises(InputError, match="last-layer relu changes the last block"):
        BackboneSettings("hf:x", last_layer="relu")
