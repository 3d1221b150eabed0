"""LeRobot's SmolVLA (arXiv 2506.01844): a small vision-language model and an expert that attends to its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor, nn

from flowrl.errors import ConfigError
from flowrl.policies.lerobot.vla import Prefix, VisionLanguageAction, as_layers

TRAINED_AT = 1.5, 1.0, 0.999, 0.001
"""Fixed in LeRobot's code, as in pi0's defaults."""


class SmolVLA(VisionLanguageAction):
    """See `VisionLanguageAction`; the state is the prefix' last token."""

    kind = "lerobot_smolvla"
    lerobot_type = "smolvla"
    steps_field = "num_steps"
    encoder_names = ("model.vlm_with_expert.vlm.", "model.state_proj.")

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """As for all such models; and the language model's weights come from the file, not from a download.

        Raises ConfigError for a checkpoint that speaks ALOHA's old units: they are no linear map of the robot's.
        """
        super().settle(config, flow_steps)
        config.load_vlm_weights = False
        if config.adapt_to_pi_aloha:
            raise ConfigError(
                "the checkpoint has adapt_to_pi_aloha set: it converts joints and grippers inside the network, "
                "where bounds and critics cannot follow. Such checkpoints are not supported"
            )

    def trained_at(self) -> tuple[float, float, float, float]:
        """LeRobot's constants."""
        return TRAINED_AT

    @property
    def language(self) -> Any:
        """SmolVLM."""
        return self.native.model.vlm_with_expert.vlm

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """SmolVLM and the projection of the state."""
        return [self.language, self.native.model.state_proj]

    def encode_prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """Images, instruction and state."""
        native, model = self.native, self.native.model
        images, seen = native.prepare_images(batch)
        embedded, present, blocks = model.embed_prefix(
            images,
            seen,
            batch["observation.language.tokens"],
            batch["observation.language.attention_mask"],
            state=native.prepare_state(batch),
        )
        mask, positions = self.attention(present, blocks)
        (hidden, _), cache = model.vlm_with_expert.forward(
            attention_mask=mask,
            position_ids=positions,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return Prefix(hidden, present, as_layers(cache))

    def denoise(self, prefix: Any, present: Tensor, state: Tensor | None, x: Tensor, time: Tensor) -> Tensor:
        """The expert's velocity (B, horizon, P)."""
        return self.native.model.denoise_step(
            prefix_pad_masks=present, past_key_values=prefix, x_t=x, timestep=time
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As every policy of LeRobot's; the tokeniser, which nothing here uses, is shared."""
        processor = self.native.model.vlm_with_expert.processor
        memo[id(processor)] = processor
        return super().__deepcopy__(memo)
