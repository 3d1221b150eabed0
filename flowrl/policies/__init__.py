"""Policies: every flow or diffusion policy behind one velocity (seam 3)."""
