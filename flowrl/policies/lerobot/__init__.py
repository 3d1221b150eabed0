"""Policies of LeRobot behind flowrl's policy interface; the one package that imports LeRobot's policies.

docs/lerobot.md says what is supported and how names, units and times are translated.
"""
