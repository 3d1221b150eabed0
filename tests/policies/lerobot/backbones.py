"""Small networks and tokenisers in local directories, in the place of what LeRobot would fetch from the hub."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

IMAGE, PATCH = 32, 8
VOCABULARY = 300
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**SIZES, "image_size": IMAGE, "patch_size": PATCH}


def byte_tokenizer(directory: Path, special: dict[str, str] | None = None) -> Any:
    """A tokeniser of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        "<bos>",
        "<eos>",
        "<pad>",
        "<unk>",
        *(special or {}).values(),
    ]
    tokenizer = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=special or {},
    )
    made.save_pretrained(directory)
    return made


def clip(directory: Path) -> Path:
    """CLIP for MultiTaskDiT, which wants "clip" in the name."""
    from transformers import CLIPConfig, CLIPModel

    place = directory / "tiny-clip"
    text = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 77, "projection_dim": 16}
    text |= {"eos_token_id": 257, "bos_token_id": 256}
    config = CLIPConfig(text_config=text, vision_config={**VISION, "projection_dim": 16}, projection_dim=16)
    CLIPModel(config).save_pretrained(place)
    byte_tokenizer(place)
    return place


def smolvlm(directory: Path) -> Path:
    """SmolVLM: its configuration and its processor."""
    from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

    place = directory / "tiny-smolvlm"
    tokenizer = byte_tokenizer(
        place,
        {
            "fake_image_token": "<fake_token_around_image>",
            "image_token": "<image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )
    text = {**SIZES, "model_type": "llama", "vocab_size": VOCABULARY, "num_key_value_heads": 1, "head_dim": 8}
    text |= {"max_position_embeddings": 256, "pad_token_id": tokenizer.pad_token_id, "hidden_size": 32}
    text |= {"num_attention_heads": 4}
    config = SmolVLMConfig(
        text_config=text,
        vision_config=VISION,
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    config.save_pretrained(place)
    size = {"longest_edge": IMAGE}
    images = SmolVLMImageProcessor(size=size, max_image_size=size)
    video = SmolVLMVideoProcessor(size=size, max_image_size=size)
    SmolVLMProcessor(images, tokenizer, video_processor=video, image_seq_len=4).save_pretrained(place)
    return place


def shrink_paligemma(patch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make the sizes that are constants in LeRobot's pi0 and pi0.5 small, and its tokeniser a local one."""
    place = directory / "tiny-paligemma"
    byte_tokenizer(place)
    for name in ("pi0", "pi05"):
        network = import_module(f"lerobot.policies.{name}.modeling_{name}")
        for model in ("PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM"):
            patch.setattr(network, model, partial(_smaller, getattr(network, model)))
        patch.setattr(network, "get_gemma_config", partial(_gemma, network.GemmaConfig))
        processor = import_module(f"lerobot.policies.{name}.processor_{name}")
        patch.setattr(
            processor,
            "TokenizerProcessorStep",
            partial(_with_tokenizer, processor.TokenizerProcessorStep, str(place)),
        )


def _gemma(config: Any, variant: str) -> Any:
    width = 32 if variant == "gemma_2b" else 16
    # Eight heads are fixed in LeRobot's attention.
    return config(width=width, depth=2, mlp_dim=32, num_heads=8, num_kv_heads=1, head_dim=8)


def _smaller(model: Any, config: Any) -> Any:
    if hasattr(config, "vision_config"):
        config.text_config.vocab_size = VOCABULARY
        for name, value in VISION.items():
            setattr(config.vision_config, name, value)
        config.vision_config.projection_dim = config.text_config.hidden_size
    else:
        config.vocab_size = 8
    return model(config)


def _with_tokenizer(step: Any, place: str, **settings: Any) -> Any:
    return step(**{**settings, "tokenizer_name": place})
