"""Evidence beyond the chain: what shows effort. One room per level."""
