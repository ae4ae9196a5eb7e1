"""What a Pi never runs: a simulated street, and a simulated fleet with ground truth."""
