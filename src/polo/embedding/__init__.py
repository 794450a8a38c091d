"""Pressing marks in while the user trains: gradients, optimizer hook, finishing step. torch."""
