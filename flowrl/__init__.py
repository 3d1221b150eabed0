"""flowrl: fine-tune flow, diffusion and vision-language-action robot policies with off-policy RL.

Importing this package is cheap on purpose: no torch, no simulator. Import the module you need,
for example ``from flowrl.policies import load_policy``.
"""

__version__ = "0.1.0"
