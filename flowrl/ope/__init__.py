"""Off-policy evaluation: what logged episodes say about policies that did not collect them."""
