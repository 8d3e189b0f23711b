"""FSDP2 trainer: GRPO, PPO clip, importance corrections, sharded checkpoints."""
