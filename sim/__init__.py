"""Simulation: environments with a spec, scripted experts and sim workers."""
