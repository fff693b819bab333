"""What an error means: effects at the outputs, causes, flips, gates, the joint effect.

Nothing here chooses a plan: that is in `decide`.
"""
