"""What training processes agree on over `torch.distributed`: the plan, the seed, equal steps."""
