"""Detent: on-policy training for continuous actions, with the policy head as a free choice."""
