"""Tiny models of transformers with random weights, in folders as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path


def tiny_mask2former(folder: Path) -> Path:
    import torch
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    torch.manual_seed(0)
    names = {0: "dog", 1: "mouse"}
    config = Mask2FormerConfig(
        backbone_config=SwinConfig(
            image_size=64,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            num_heads=[1, 1, 1, 1],
            window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=8,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    Mask2FormerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def tiny_clip(folder: Path) -> Path:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    torch.manual_seed(0)
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)] + ["-"]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({name: row for row, name in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    end = len(tokens) - 1
    common = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = CLIPConfig(
        text_config={
            **common,
            "num_attention_heads": 2,
            "vocab_size": len(tokens),
            "bos_token_id": end - 1,
            "eos_token_id": end,
            "pad_token_id": end,
        },
        vision_config={**common, "num_attention_heads": 2, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def tiny_aesthetic(folder: Path) -> Path:
    """A CLIP that sees alone, and the layers of LAION's predictor on it."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
        projection_dim=8,
    )
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    widths = (8, 1024, 128, 64, 16, 1)
    for at, before, width in zip((0, 2, 4, 6, 7), widths, widths[1:], strict=False):
        weights[f"layers.{at}.weight"] = torch.randn(width, before) / before**0.5
        weights[f"layers.{at}.bias"] = torch.randn(width)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_clip(folder / "whole")  # for its processor
    for file in (folder / "whole").iterdir():
        if not (folder / file.name).exists() and file.suffix != ".safetensors":
            file.rename(folder / file.name)
    CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    return folder


def tiny_hpsv3(folder: Path) -> Path:
    """HPSv3 as it is published: its weights in one file, with the names that transformers gave them
    then, and the Qwen2-VL that it was made of in the folder `qwen`."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessorPil,
    )

    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE(vocab={one: row for row, one in enumerate(alphabet)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = ("im_start", "im_end", "vision_start", "vision_end", "image_pad")
    letters.add_special_tokens([AddedToken(f"<|{mark}|>", special=True) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters)
    rows = len(tokenizer) + 1
    config = Qwen2VLConfig(
        text_config={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": rows + 100,  # as the base has more rows than tokens
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    for part in (config, tokenizer, Qwen2VLImageProcessorPil()):
        part.save_pretrained(folder / "qwen")
    config.text_config.vocab_size = rows
    model = Qwen2VLForConditionalGeneration(config).to(torch.bfloat16)
    state = {}
    for name, tensor in model.state_dict().items():
        former = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        state[former] = tensor.contiguous()
    for at, before, width in ((0, 32, 1024), (3, 1024, 16), (5, 16, 2)):
        state[f"rm_head.{at}.weight"] = torch.randn(width, before) / before**0.5
        state[f"rm_head.{at}.bias"] = torch.randn(width)
    save_file(state, folder / "HPSv3.safetensors")
    return folder
