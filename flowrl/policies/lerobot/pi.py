"""What LeRobot's pi0 and pi0.5 share: PaliGemma and a Gemma expert that attend to each other layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from flowrl.policies.lerobot.library import lerobot, quiet
from flowrl.policies.lerobot.vla import Prefix, VisionLanguageAction, as_layers


class PiPolicy(VisionLanguageAction):
    """See `VisionLanguageAction`. Weights are float32 whatever the checkpoint's ``dtype`` was: small steps of an
    optimiser vanish in bfloat16.
    """

    encoder_names = ("model.paligemma_with_expert.paligemma.",)

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """As for all such models; in float32 and without LeRobot's own recomputation, which drops the cache."""
        super().settle(config, flow_steps)
        config.dtype = "float32"
        config.gradient_checkpointing = False

    def complete(self) -> None:
        """The attention that LeRobot sets when it samples: the one that takes its masks as they are."""
        networks = self.native.model.paligemma_with_expert
        for network in (networks.paligemma.model.language_model, networks.gemma_expert.model):
            network.config._attn_implementation = "eager"

    def trained_at(self) -> tuple[float, float, float, float]:
        """The checkpoint's own."""
        config = self.native.config
        return (
            config.time_sampling_beta_alpha,
            config.time_sampling_beta_beta,
            config.time_sampling_scale,
            config.time_sampling_offset,
        )

    @property
    def language(self) -> Any:
        """PaliGemma."""
        return self.native.model.paligemma_with_expert.paligemma

    @property
    def never_trained(self) -> list[nn.Module]:
        """The output layers of both language models."""
        return [*super().never_trained, self.native.model.paligemma_with_expert.gemma_expert.lm_head]

    def encode_prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """Images and instruction."""
        native, model = self.native, self.native.model
        embedded, present, blocks = model.embed_prefix(
            *native._preprocess_images(batch),
            batch["observation.language.tokens"],
            batch["observation.language.attention_mask"],
        )
        mask, positions = self.attention(present, blocks)
        (hidden, _), cache = model.paligemma_with_expert.forward(
            attention_mask=lerobot("policies.common.vla_utils").prepare_attention_masks_4d(mask),
            position_ids=positions,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return Prefix(hidden, present, as_layers(cache))

    def load_checkpoint(self, path: Path) -> tuple[Collection[str], Collection[str]]:
        """As for every policy, by the names that LeRobot gives to the weights of openpi and of its older versions."""
        with quiet():
            stored = self.native._fix_pytorch_state_dict_keys(
                safetensors.torch.load_file(path), self.native.config
            )
        named = {name if name.startswith("model.") else f"model.{name}": stored[name] for name in stored}
        missing, unexpected = self.native.load_state_dict(named, strict=False)
        return missing, unexpected
