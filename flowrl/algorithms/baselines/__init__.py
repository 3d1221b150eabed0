"""Published methods that SQAM and its kin are compared with, on the same networks, replay and acting rules."""
