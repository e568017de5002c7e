"""Which datasets exist, who may write them, and what is wrong with them."""
