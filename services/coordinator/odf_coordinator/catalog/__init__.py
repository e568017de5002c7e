"""Which datasets there are, who may write them, and what is wrong with them."""
